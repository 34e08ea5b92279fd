//! Draws SVG: shapes and text on a white background. The few shapes that plots need are written as
//! text; in-process figures are hatched by SVG patterns.

use std::fmt::Write;

/// A picture whose height is set at the end.
pub struct Picture {
    width: f64,
    body: String,
    patterns: String,
}

/// Position of text relative to its point.
#[derive(Debug, Clone, Copy)]
pub enum Anchor {
    /// To the right of the point.
    Start,
    /// Centred on the point.
    Middle,
    /// To the left of the point.
    End,
}

/// Size and weight of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// Title of a picture.
    Title,
    /// Heading of a panel.
    Heading,
    /// Names of systems.
    Plain,
    /// Values and remarks.
    Small,
}

/// Colour of lines and text.
pub const INK: &str = "#24292f";
/// Colour of auxiliary lines.
pub const FAINT: &str = "#d0d7de";

impl Picture {
    /// Creates an empty picture.
    pub fn new(width: f64) -> Self {
        Self {
            width,
            body: String::new(),
            patterns: String::new(),
        }
    }

    /// Adds a striped pattern in a colour; [`hatched`] refers to it.
    pub fn hatch(&mut self, name: &str, colour: &str) {
        self.patterns.push_str(&format!(
            "<pattern id=\"{}\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect width=\"7\" height=\"7\" fill=\"#ffffff\"/>\
             <rect width=\"4\" height=\"7\" fill=\"{colour}\"/></pattern>\n",
            escaped(name)
        ));
    }

    /// Draws a filled rectangle with an edge.
    pub fn rect(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        fill: &str,
        edge: &str,
    ) {
        self.shape(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{}\" stroke=\"{edge}\"/>",
            escaped(fill)
        ));
    }

    /// Draws a line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        self.shape(format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" \
             stroke-width=\"{width}\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    /// Draws a line through points, with a dot at each; dashed if `dashed`.
    pub fn path(&mut self, points: &[(f64, f64)], colour: &str, dashed: bool) {
        let list: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let dash = if dashed {
            " stroke-dasharray=\"7 4\""
        } else {
            ""
        };
        self.shape(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"{dash}/>",
            list.join(" ")
        ));
        for (x, y) in points {
            self.shape(format_args!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"
            ));
        }
    }

    /// Draws text.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, kind: Type, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (size, weight) = match kind {
            Type::Title => (20, "bold"),
            Type::Heading => (16, "bold"),
            Type::Plain => (14, "normal"),
            Type::Small => (13, "normal"),
        };
        self.shape(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" \
             font-weight=\"{weight}\" fill=\"{INK}\">{}</text>",
            escaped(text)
        ));
    }

    /// Returns the SVG text of the picture with this height.
    pub fn finish(self, height: f64) -> String {
        let width = self.width;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"DejaVu Sans, Verdana, sans-serif\">\n\
             <defs>\n{}</defs>\n\
             <rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n{}</svg>\n",
            self.patterns, self.body
        )
    }

    fn shape(&mut self, shape: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.body, "{shape}");
    }
}

/// Returns the fill that refers to a pattern.
pub fn hatched(name: &str) -> String {
    format!("url(#{name})")
}

/// Escapes text for XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Panics unless tags are closed in order, attributes quoted, and text escaped; returns all
    /// text.
    pub fn well_formed(svg: &str) -> Vec<String> {
        let (mut open, mut texts) = (Vec::new(), Vec::new());
        for part in svg.split('<').skip(1) {
            let (tag, text) = part.split_once('>').expect("a tag ends");
            assert!(!text.contains('>'), "{part}");
            let bare = text.split('&').skip(1).all(|rest| {
                ["amp;", "lt;", "gt;", "quot;"]
                    .iter()
                    .any(|e| rest.starts_with(e))
            });
            assert!(bare, "{part}");
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            assert!(!tag.contains("NaN") && !tag.contains("inf"), "{tag}");
            if !text.trim().is_empty() {
                texts.push(text.to_owned());
            }
            match (tag.strip_prefix('/'), tag.ends_with('/')) {
                (Some(name), _) => assert_eq!(open.pop(), Some(name), "{part}"),
                (None, true) => {}
                (None, false) => open.push(tag.split(' ').next().unwrap()),
            }
        }
        assert_eq!(open, Vec::<&str>::new());
        texts
    }

    #[test]
    fn picture_is_well_formed_xml() {
        let mut picture = Picture::new(100.0);
        picture.hatch("a", "#112233");
        picture.rect((1.0, 2.0), (3.0, 4.0), &hatched("a"), INK);
        picture.line((0.0, 0.0), (5.0, 5.0), FAINT, 1.0);
        picture.path(&[(1.0, 1.0), (2.0, 3.0)], INK, true);
        picture.text((9.0, 9.0), Anchor::End, Type::Plain, "a < b & \"c\"");
        let texts = well_formed(&picture.finish(50.0));
        assert_eq!(texts, ["a &lt; b &amp; &quot;c&quot;"]);
    }
}
