//! Rust sources read as text: enough to find the paths in them, no more.

/// The words and signs of a source, without comments and with empty strings.
fn tokens(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        let len = match rest {
            ['/', '/', ..] => rest.iter().take_while(|c| **c != '\n').count(),
            ['/', '*', ..] => comment_len(rest),
            ['"', ..] => string_len(rest),
            ['r', '"' | '#', ..] if raw_string_len(rest).is_some() => {
                raw_string_len(rest).unwrap_or(1)
            }
            ['\'', ..] => quote_len(rest),
            [':', ':', ..] => {
                found.push("::".to_owned());
                2
            }
            [c, ..] if c.is_alphanumeric() || *c == '_' => {
                let word: String = rest
                    .iter()
                    .take_while(|c| c.is_alphanumeric() || **c == '_')
                    .collect();
                let len = word.chars().count();
                found.push(word);
                len
            }
            [c, ..] => {
                if !c.is_whitespace() {
                    found.push(c.to_string());
                }
                1
            }
            [] => 1,
        };
        at += len.max(1);
    }
    found
}

fn comment_len(rest: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => {
                depth += 1;
                at += 2;
            }
            ['*', '/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    at
}

fn string_len(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

fn raw_string_len(rest: &[char]) -> Option<usize> {
    let hashes = rest.iter().skip(1).take_while(|c| **c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return None;
    }
    let mut at = 2 + hashes;
    while at < rest.len() {
        let closes = rest[at] == '"'
            && rest.len() >= at + 1 + hashes
            && rest[at + 1..at + 1 + hashes].iter().all(|c| *c == '#');
        at += 1;
        if closes {
            return Some(at + hashes);
        }
    }
    Some(at)
}

/// A character, or the quote of a lifetime.
fn quote_len(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', _, ..] => {
            let end = rest.iter().skip(3).position(|c| *c == '\'');
            end.map_or(1, |n| n + 4)
        }
        ['\'', _, '\'', ..] => 3,
        _ => 1,
    }
}

/// The source without comments, and without what follows `#[cfg(test)]` up to its end.
pub fn without_tests(text: &str) -> String {
    let tokens = tokens(text);
    let attribute = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept: Vec<&str> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let here = &tokens[at..];
        if here.len() >= attribute.len() && here.iter().zip(attribute).all(|(a, b)| a == b) {
            at += attribute.len() + item_len(&here[attribute.len()..]);
            continue;
        }
        kept.push(&tokens[at]);
        at += 1;
    }
    kept.join(" ")
}

/// Tokens of an item: up to its semicolon, or the end of its braces.
fn item_len(tokens: &[String]) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        let ends = match token.as_str() {
            ";" | "}" => depth == 0,
            _ => false,
        };
        if ends {
            return i + 1;
        }
    }
    tokens.len()
}

/// All paths in a source that begin with `first`, groups in braces taken apart.
pub fn paths_from(text: &str, first: &str) -> Vec<Vec<String>> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let begins = token == first
            && tokens.get(i + 1).is_some_and(|t| t == "::")
            && (i == 0 || tokens[i - 1] != "::");
        if begins {
            tree(&tokens, i, &[], &mut found);
        }
    }
    found
}

/// Follows a path, or a group of paths, from token `at`; returns where it ends.
fn tree(
    tokens: &[String],
    mut at: usize,
    before: &[String],
    found: &mut Vec<Vec<String>>,
) -> usize {
    let mut path = before.to_vec();
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("{") => {
                at += 1;
                while tokens.get(at).is_some_and(|t| t != "}") {
                    at = tree(tokens, at, &path, found);
                    while tokens.get(at).is_some_and(|t| t != "," && t != "}") {
                        at += 1;
                    }
                    if tokens.get(at).is_some_and(|t| t == ",") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            Some(word) => path.push(word.to_owned()),
            None => break,
        }
        at += 1;
        if tokens.get(at).is_none_or(|t| t != "::") {
            break;
        }
        at += 1;
    }
    found.push(path);
    at
}
