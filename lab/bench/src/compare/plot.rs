//! Plots: for each task bars with the minimum and maximum of all rounds, a panel for each phase
//! with its own scale from zero; for each sweep lines over the number of threads.

use super::figures::{BYTES_EACH, Kind, Row, SECONDS, WRITES_EACH};
use super::found::Found;
use super::svg::{Anchor, FAINT, INK, Picture, Type, hatched};
use super::sweep::{Sweep, sweeps};
use super::system::System;
use super::table::readable;
use super::task::Task;

const WIDTH: f64 = 1120.0;
const MARGIN: f64 = 24.0;
const GAP: f64 = 40.0;
const PANEL: f64 = (WIDTH - 2.0 * MARGIN - GAP) / 2.0;
/// Height above the panels, for title and legend.
const TOP: f64 = 92.0;
/// Height below the panels, for the conditions.
const FOOT: f64 = 62.0;

/// Returns all pictures, with their file names.
pub fn all(found: &Found) -> Vec<(String, String)> {
    let mut pictures = Vec::new();
    for (task, rows) in found.tasks.iter().zip(&found.rows) {
        let rows = drawn(rows);
        if !rows.is_empty() {
            let name = file_name(&task.title);
            pictures.push((format!("{name}.svg"), bars(found, task, &rows)));
        }
    }
    for sweep in sweeps(found) {
        let name = file_name(sweep.title);
        pictures.push((format!("{name}-over-threads.svg"), lines(found, &sweep)));
    }
    pictures
}

/// Returns the rows to draw: rates, then latencies, then device costs per operation. Rows without
/// values are left out.
fn drawn(rows: &[Row]) -> Vec<&Row> {
    let groups: [fn(&Row) -> bool; 3] = [
        |row| row.kind == Kind::Rate,
        |row| row.kind == Kind::Time && row.figure != SECONDS,
        |row| [BYTES_EACH, WRITES_EACH].contains(&row.figure.as_str()),
    ];
    let some = || rows.iter().filter(|row| row.is_something());
    let of = |group: fn(&Row) -> bool| some().filter(move |row| group(row));
    groups.into_iter().flat_map(of).collect()
}

fn file_name(title: &str) -> String {
    let words = title.split(|c: char| !c.is_alphanumeric() && c != '_');
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join("-").to_lowercase()
}

/// Returns a system's colour, distinguishable also with colour vision deficiency.
fn colour(system: System) -> &'static str {
    match system {
        System::Cairnfs => "#0072b2",
        System::CairnfsInode => "#56b4e9",
        System::CairnfsMount => "#005a8c",
        System::Noop => "#9a9a9a",
        System::Raw => "#5a5a5a",
        System::Xfs => "#e69f00",
        System::Ext4 => "#009e73",
        System::Btrfs => "#cc79a7",
        _ => "#b0d4ea",
    }
}

fn fill(system: System) -> String {
    if system.in_process() {
        hatched(system.name())
    } else {
        colour(system).to_owned()
    }
}

/// Draws title, legend and footer; `draw` draws the rest and returns its height.
fn framed(
    found: &Found,
    title: &str,
    remark: &str,
    draw: impl FnOnce(&mut Picture) -> f64,
) -> String {
    let mut picture = Picture::new(WIDTH);
    for system in found.systems.iter().filter(|system| system.in_process()) {
        picture.hatch(system.name(), colour(*system));
    }
    picture.text((MARGIN, 34.0), Anchor::Start, Type::Title, title);
    let mut x = MARGIN;
    for system in &found.systems {
        picture.rect((x, 52.0), (22.0, 16.0), &fill(*system), colour(*system));
        let label = if system.in_process() {
            format!("{system} (in-process)")
        } else {
            system.name().to_owned()
        };
        picture.text((x + 28.0, 65.0), Anchor::Start, Type::Plain, &label);
        x += 52.0 + label.len() as f64 * 8.4;
    }
    let height = TOP + draw(&mut picture);
    picture.text((MARGIN, height + 14.0), Anchor::Start, Type::Small, remark);
    let mut y = height + 14.0;
    for line in &found.conditions.short() {
        y += 18.0;
        picture.text((MARGIN, y), Anchor::Start, Type::Small, line);
    }
    picture.finish(height + FOOT)
}

const BAR: f64 = 20.0;
const PITCH: f64 = 27.0;
const HEADING: f64 = 46.0;
const NAMES: f64 = 118.0;
/// Width for a value after the longest whisker.
const VALUES: f64 = 66.0;

fn bars(found: &Found, task: &Task, rows: &[&Row]) -> String {
    let height = HEADING + PITCH * found.systems.len() as f64 + 18.0;
    let remark = "Bars: median; whiskers: least and most of all rounds. Hatched: in-process, by calls of the \
                  library; filled: through system calls.";
    framed(found, &task.title, remark, |picture| {
        for (number, row) in rows.iter().enumerate() {
            let column = (number % 2) as f64;
            let line = (number / 2) as f64;
            let place = (MARGIN + column * (PANEL + GAP), TOP + line * height);
            bar_panel(picture, &found.systems, row, place);
        }
        height * rows.len().div_ceil(2) as f64
    })
}

fn bar_panel(picture: &mut Picture, systems: &[System], row: &Row, (x, y): (f64, f64)) {
    let better = match row.kind {
        Kind::Rate | Kind::Load => "longer is better",
        Kind::Time | Kind::Cost => "shorter is better",
    };
    heading(picture, row, better, (x, y));
    let (left, room) = (x + NAMES, PANEL - NAMES - VALUES);
    let most = row.cells.iter().flatten().map(|cell| cell.most);
    let scale = room / most.fold(f64::MIN_POSITIVE, f64::max);
    for (number, (system, cell)) in systems.iter().zip(&row.cells).enumerate() {
        let top = y + HEADING + PITCH * number as f64;
        let middle = top + BAR / 2.0;
        let name = (left - 8.0, middle + 5.0);
        picture.text(name, Anchor::End, Type::Plain, system.name());
        let Some(cell) = cell else {
            picture.text(
                (left + 6.0, middle + 5.0),
                Anchor::Start,
                Type::Small,
                "not measured",
            );
            continue;
        };
        let size = (cell.median * scale, BAR);
        picture.rect((left, top), size, &fill(*system), colour(*system));
        whisker(
            picture,
            (left + cell.least * scale, left + cell.most * scale),
            middle,
        );
        let value = (left + cell.most * scale + 8.0, middle + 5.0);
        picture.text(value, Anchor::Start, Type::Small, &readable(cell.median));
    }
    let bottom = y + HEADING + PITCH * systems.len() as f64;
    picture.line((left, y + HEADING - 4.0), (left, bottom), INK, 1.0);
}

fn heading(picture: &mut Picture, row: &Row, better: &str, (x, y): (f64, f64)) {
    picture.text((x, y + 14.0), Anchor::Start, Type::Heading, row.phase);
    let figure = format!("{}; {better}", row.figure);
    picture.text((x, y + 33.0), Anchor::Start, Type::Small, &figure);
}

fn whisker(picture: &mut Picture, (from, to): (f64, f64), y: f64) {
    picture.line((from, y), (to, y), INK, 1.5);
    for end in [from, to] {
        picture.line((end, y - 5.0), (end, y + 5.0), INK, 1.5);
    }
}

const PLOT: f64 = 240.0;
const SCALE: f64 = 62.0;

/// Draws the rates of each phase over the number of threads.
fn lines(found: &Found, sweep: &Sweep<'_>) -> String {
    let panels = sweep.figures(&[Kind::Rate]);
    let title = format!("{}, over the number of threads", sweep.title);
    let remark = "Medians; bars from least to most of all rounds. Dashed: in-process, by calls of the library.";
    framed(found, &title, remark, |picture| {
        let height = HEADING + PLOT + 52.0;
        for (number, panel) in panels.iter().enumerate() {
            let column = (number % 2) as f64;
            let line = (number / 2) as f64;
            let place = (MARGIN + column * (PANEL + GAP), TOP + line * height);
            let points = sweep.along(*panel);
            line_panel(picture, &found.systems, &points, place);
        }
        height * panels.len().div_ceil(2) as f64
    })
}

fn line_panel(picture: &mut Picture, systems: &[System], points: &[(usize, &Row)], at: (f64, f64)) {
    let (x, y) = at;
    let cells = || {
        points
            .iter()
            .flat_map(|(_, row)| row.cells.iter().flatten())
    };
    let least = cells().map(|cell| cell.least).fold(f64::MAX, f64::min);
    let most = cells()
        .map(|cell| cell.most)
        .fold(f64::MIN_POSITIVE, f64::max);
    let scale = Scale::of(least, most);
    if let Some((_, row)) = points.first() {
        heading(picture, row, scale.remark(), (x, y));
    }
    let (left, right) = (x + SCALE, x + PANEL - 12.0);
    let (up, down) = (y + HEADING, y + HEADING + PLOT);
    let height = |value: f64| down - (down - up) * scale.part(value);
    for value in scale.marks() {
        let y = height(value);
        picture.line((left, y), (right, y), FAINT, 1.0);
        let place = (left - 8.0, y + 5.0);
        picture.text(place, Anchor::End, Type::Small, &readable(value));
    }
    // Counts are spaced equally because they usually double.
    let last = points.len().saturating_sub(1).max(1) as f64;
    let across = |n: usize| left + 16.0 + (right - left - 32.0) * n as f64 / last;
    for (n, (threads, _)) in points.iter().enumerate() {
        let place = (across(n), down + 20.0);
        picture.text(place, Anchor::Middle, Type::Small, &threads.to_string());
    }
    let middle = (f64::midpoint(left, right), down + 38.0);
    picture.text(middle, Anchor::Middle, Type::Small, "threads");
    for (number, system) in systems.iter().enumerate() {
        let mut path = Vec::new();
        for (n, (_, row)) in points.iter().enumerate() {
            if let Some(Some(cell)) = row.cells.get(number) {
                let (x, colour) = (across(n), colour(*system));
                path.push((x, height(cell.median)));
                picture.line((x, height(cell.least)), (x, height(cell.most)), colour, 1.5);
            }
        }
        if !path.is_empty() {
            picture.path(&path, colour(*system), system.in_process());
        }
    }
}

/// The vertical scale.
enum Scale {
    /// Linear, from zero to this value.
    Linear(f64),
    /// Logarithmic, between these powers of ten.
    Logarithmic(i32, i32),
}

impl Scale {
    /// Selects a linear scale unless the smallest values would be indistinguishable from zero.
    fn of(least: f64, most: f64) -> Self {
        if least > 0.0 && most / least > 12.0 {
            Scale::Logarithmic(least.log10().floor() as i32, most.log10().ceil() as i32)
        } else {
            Scale::Linear(nice(most))
        }
    }

    fn remark(&self) -> &'static str {
        match self {
            Scale::Linear(_) => "higher is better",
            Scale::Logarithmic(..) => "higher is better; logarithmic",
        }
    }

    /// Returns the relative height of a value, from 0 to 1.
    fn part(&self, value: f64) -> f64 {
        match self {
            Scale::Linear(top) => value / top,
            Scale::Logarithmic(from, to) => {
                (value.log10() - f64::from(*from)) / f64::from(to - from)
            }
        }
    }

    fn marks(&self) -> Vec<f64> {
        match self {
            Scale::Linear(top) => (0..=4).map(|n| top * f64::from(n) / 4.0).collect(),
            Scale::Logarithmic(from, to) => {
                let decade = |n| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(n));
                let inner = (*from..*to).flat_map(decade);
                inner.chain([10f64.powi(*to)]).collect()
            }
        }
    }
}

/// Returns the next larger number that divides well into four steps.
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0];
    let found = steps.iter().map(|step| step * power);
    found
        .into_iter()
        .find(|top| *top >= value)
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
pub mod tests {
    use super::super::conditions::Conditions;
    use super::super::figures::rows;
    use super::super::figures::tests::sample;
    use super::super::svg::tests::well_formed;
    use super::*;

    /// Results for two numbers of threads.
    pub fn found() -> Found {
        let (runs, systems) = sample();
        let rows = rows(&runs, &systems, 0);
        let tasks = Task::parse("fsmark --files 1000").unwrap();
        let tasks = tasks.with_threads(&[1, 2]).unwrap();
        Found {
            conditions: Conditions::new("/dev/x <&>", 3),
            systems,
            tasks,
            missing: Vec::new(),
            runs,
            rows: vec![rows.clone(), rows],
        }
    }

    #[test]
    fn bar_plot_names_every_system_phase_and_value() {
        let found = found();
        let pictures = all(&found);
        assert_eq!(pictures.len(), 3);
        assert_eq!(
            pictures[0].0,
            "fsmark-files-1000-1-thread-1000-files-each.svg"
        );
        let texts = well_formed(&pictures[0].1);
        for text in [
            "files/s; longer is better",
            "cairnfs (in-process)",
            "xfs",
            "5000",
            "not measured",
        ] {
            assert!(texts.iter().any(|t| t == text), "{text}: {texts:?}");
        }
        assert!(pictures[0].1.contains("fill=\"url(#cairnfs)\""));
        assert!(
            texts
                .iter()
                .any(|text| text.contains("/dev/x &lt;&amp;&gt;"))
        );
    }

    #[test]
    fn sweep_is_drawn_over_threads() {
        let found = found();
        let (name, svg) = all(&found).pop().unwrap();
        assert_eq!(name, "fsmark-files-1000-over-threads.svg");
        let texts = well_formed(&svg);
        assert!(texts.iter().any(|text| text == "threads"));
        // Three systems have both phases, the no-op system has one.
        assert_eq!(svg.matches("<polyline").count(), 7);
    }

    #[test]
    fn scale_covers_its_values_and_marks() {
        for (least, most) in [
            (1.0, 5.0),
            (0.0, 3.0),
            (29_000.0, 1_070_000.0),
            (10.0, 1000.0),
        ] {
            let scale = Scale::of(least, most);
            let marks = scale.marks();
            let last = *marks.last().unwrap();
            assert!(marks[0] <= least.max(marks[0]) && last >= most, "{marks:?}");
            for value in [most, least.max(marks[0]), marks[0], last] {
                let part = scale.part(value);
                assert!((0.0..=1.0 + 1e-9).contains(&part), "{value}: {part}");
            }
        }
        assert!(matches!(Scale::of(1.0, 5.0), Scale::Linear(_)));
        let wide = Scale::of(29_000.0, 1_070_000.0);
        assert!(matches!(wide, Scale::Logarithmic(4, 7)));
    }

    #[test]
    fn scales_end_above_the_highest_value() {
        for (value, top) in [(1.0, 1.0), (1.1, 1.2), (9.0, 10.0), (268_000.0, 300_000.0)] {
            assert!((nice(value) - top).abs() < 1e-6, "{value}");
        }
    }
}
