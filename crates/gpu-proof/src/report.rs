//! Results of a part: a line of JSON each, written before the next is looked for, and a page of Markdown.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// A measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The name of the measurement.
    pub name: String,
    /// The unit of all numbers except the spread and those of candidates.
    pub unit: String,
    /// Kiln's number, a median; `None` where something else is measured.
    pub kiln: Option<f64>,
    /// The distance between the quartiles of the first number as a part of the median, where several were taken.
    pub spread: Option<f64>,
    /// The number that a roofline predicts: that of work which moves its bytes as fast as a copy, and multiplies as
    /// fast as the machine can, where its bytes and operations are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<f64>,
    /// Other numbers for the same work, by whose they are.
    pub beside: BTreeMap<String, f64>,
    /// The candidates that the tuner chose among.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Candidate>,
}

/// A candidate for a kernel of a measured program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The tuner's key of the kernel.
    pub kernel: String,
    /// Its name among the kernel's candidates.
    pub name: String,
    /// The median time of the program with it.
    pub seconds: f64,
    /// The distance between the quartiles as a part of the median.
    pub spread: f64,
    /// The kernel's time by the engine's cost model, as a multiple of the shortest of all candidates'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<f64>,
}

/// The findings of a part.
#[derive(Debug, Default)]
pub struct Report {
    /// Checks that held.
    pub held: u64,
    /// Faults.
    pub wrong: Vec<String>,
    /// Checks and measurements that there was no time for.
    pub left_out: Vec<String>,
    /// Remarks.
    pub notes: Vec<String>,
    /// Measurements.
    pub figures: Vec<Figure>,
    /// Seconds it took; `None` if it did not come to its end.
    pub seconds: Option<f64>,
    /// The file of the lines.
    lines: Option<File>,
}

impl Report {
    /// A report that writes each result to a file as it is known.
    ///
    /// # Errors
    /// If the file can't be made.
    pub fn to_file(path: &Path) -> std::io::Result<Report> {
        Ok(Report {
            lines: Some(File::create(path)?),
            ..Report::default()
        })
    }

    /// A report whose lines follow those that a file has.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn going_on(path: &Path) -> std::io::Result<Report> {
        let mut file = File::options().create(true).append(true).open(path)?;
        // The last line may be cut off.
        file.write_all(b"\n")?;
        Ok(Report {
            lines: Some(file),
            ..Report::default()
        })
    }

    /// The report of these lines, the last of which may be cut off.
    pub fn from_lines(text: &str) -> Report {
        let mut report = Report::default();
        for line in text.lines() {
            if let Ok(line) = serde_json::from_str(line) {
                report.take(&line);
            }
        }
        report
    }

    /// Adds what a line says.
    fn take(&mut self, line: &Value) {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
        for (kind, value) in line.as_object().into_iter().flatten() {
            match kind.as_str() {
                "held" => self.held += 1,
                "wrong" => self.wrong.push(text(value)),
                "left out" => self.left_out.push(text(value)),
                "note" => self.notes.push(text(value)),
                "seconds" => self.seconds = value.as_f64(),
                // A number that is not finite is no JSON.
                _ => match Figure::deserialize(value) {
                    Ok(figure) => self.figures.push(figure),
                    Err(e) => self.wrong.push(format!("a figure is off, {e}: {value}")),
                },
            }
        }
    }

    fn add(&mut self, line: Value) {
        if let Some(file) = &mut self.lines {
            // A line is one write, so that a process that is killed leaves whole ones.
            if let Err(e) = file.write_all(format!("{line}\n").as_bytes()) {
                eprintln!("  a result can't be written: {e}");
            }
        }
        self.take(&line);
    }

    /// Adds a fault.
    pub fn wrong(&mut self, what: impl Into<String>) {
        let text = what.into();
        eprintln!("  WRONG {text}");
        self.add(json!({"wrong": text}));
    }

    /// Adds what there was no time for.
    pub fn leave_out(&mut self, what: impl Into<String>) {
        let text = what.into();
        eprintln!("  left out: {text}");
        self.add(json!({"left out": text}));
    }

    /// Adds a remark.
    pub fn note(&mut self, what: impl Into<String>) {
        let text = what.into();
        eprintln!("  {text}");
        self.add(json!({"note": text}));
    }

    /// Counts a check, or adds its fault.
    pub fn check(&mut self, what: &str, result: Result<(), String>) {
        match result {
            Ok(()) => self.add(json!({"held": what})),
            Err(why) => self.wrong(format!("{what}: {why}")),
        }
    }

    /// Adds a measurement.
    pub fn figure(&mut self, figure: Figure) {
        let kiln = figure.kiln.map(|n| ("Kiln", n)).into_iter();
        let columns = kiln.chain(figure.beside.iter().map(|(who, n)| (who.as_str(), *n)));
        let shown: Vec<String> = columns.map(|(who, n)| format!("{who} {n:.3}")).collect();
        let (name, unit) = (&figure.name, &figure.unit);
        eprintln!("  {name}: {} {unit}", shown.join(", "));
        self.add(json!({"figure": figure}));
    }

    /// Adds the number of a measurement that is compared with nothing.
    pub fn number(&mut self, name: impl Into<String>, unit: &str, kiln: f64) {
        self.figure(Figure {
            name: name.into(),
            unit: unit.into(),
            kiln: Some(kiln),
            ..Figure::default()
        });
    }

    /// Says that the part came to its end.
    pub fn end(&mut self, seconds: f64) {
        self.add(json!({"seconds": seconds}));
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "held": self.held,
            "wrong": self.wrong,
            "left_out": self.left_out,
            "notes": self.notes,
            "figures": self.figures,
            "seconds": self.seconds,
        })
    }

    /// As a section of a page.
    pub fn to_markdown(&self, name: &str, claim: &str) -> String {
        let state = match (self.wrong.is_empty(), self.held) {
            (true, 0) => String::new(),
            (true, n) => format!(" {n} checks hold."),
            (false, n) => format!(" **{} wrong**, {n} checks hold.", self.wrong.len()),
        };
        let end = self
            .seconds
            .map_or(" It did not come to its end.".into(), |s| {
                format!(" {s:.0} s.")
            });
        let mut text = format!("## {name}\n\n{claim}.{state}{end}\n\n");
        if !self.figures.is_empty() {
            let references = self.figures.iter().flat_map(|f| f.beside.keys());
            let references: BTreeSet<&String> = references.collect();
            let head: String = references.iter().map(|who| format!(" {who} |")).collect();
            let rule = "---:|".repeat(references.len());
            text += &format!("| | Kiln | spread | predicted |{head} unit |\n");
            text += &format!("|---|---:|---:|---:|{rule}---|\n");
            let shown = |n: Option<f64>| n.map_or("–".into(), number);
            for f in &self.figures {
                let spread = f.spread.map_or("–".into(), percent);
                let cells = references.iter().map(|who| f.beside.get(*who).copied());
                let cells: String = cells.map(|n| format!(" {} |", shown(n))).collect();
                let [kiln, predicted] = [f.kiln, f.predicted].map(shown);
                let (name, unit) = (&f.name, &f.unit);
                text += &format!("| {name} | {kiln} | {spread} | {predicted} |{cells} {unit} |\n");
            }
            text.push('\n');
            let candidates = self.figures.iter().flat_map(Figure::candidate_lines);
            candidates.for_each(|line| text += &format!("- {line}\n"));
        }
        let lists = [
            (&self.wrong, "WRONG "),
            (&self.left_out, "left out: "),
            (&self.notes, ""),
        ];
        for (list, mark) in lists {
            for line in list.iter().take(50) {
                text += &format!("- {mark}{}\n", line.replace('\n', " "));
            }
            if list.len() > 50 {
                text += &format!("- … and {} more\n", list.len() - 50);
            }
        }
        text.push('\n');
        text
    }
}

impl Figure {
    /// A line for each kernel with candidates: these, fastest first, each with the program's time as a multiple of the
    /// least, and the kernel's as predicted.
    fn candidate_lines(&self) -> Vec<String> {
        let line = |kernel: &[Candidate]| {
            let mut sorted: Vec<&Candidate> = kernel.iter().collect();
            sorted.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
            let text = |c: &&Candidate| {
                let (time, ratio) = (number(1e6 * c.seconds), c.seconds / sorted[0].seconds);
                let predicted = c.predicted.map(|p| format!(", predicted {p:.2}x"));
                let (predicted, spread) = (predicted.unwrap_or_default(), percent(c.spread));
                format!(
                    "{} {time} µs, {ratio:.2}x{predicted}, spread {spread}",
                    c.name
                )
            };
            let texts: Vec<String> = sorted.iter().map(text).collect();
            format!("{} by candidates: {}", self.name, texts.join("; "))
        };
        let kernels = self.candidates.chunk_by(|a, b| a.kernel == b.kernel);
        kernels.map(line).collect()
    }
}

fn percent(fraction: f64) -> String {
    format!("{:.1}%", 100.0 * fraction)
}

/// Three digits.
fn number(x: f64) -> String {
    let digits = 2 - x.abs().max(1e-9).log10().floor().clamp(-4.0, 2.0) as i32;
    format!("{x:.*}", digits.max(0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_as_lines_and_is_readable() {
        let path = std::env::temp_dir().join(format!("kiln-report-{}", std::process::id()));
        let candidate = |name: &str, seconds, predicted| Candidate {
            kernel: "fused softmax".into(),
            name: name.into(),
            seconds,
            spread: 0.011,
            predicted,
        };
        let mut report = Report::to_file(&path).unwrap();
        report.check("sum", Ok(()));
        report.check("product", Err("3 is not\n4".into()));
        report.note("skipped: loops");
        report.leave_out("programs from 7 on");
        report.number("copy", "GB/s", 1234.5678);
        report.figure(Figure {
            name: "softmax".into(),
            unit: "GB/s".into(),
            kiln: Some(0.012345),
            spread: Some(0.0214),
            predicted: Some(0.0456),
            beside: BTreeMap::from([("PyTorch".into(), 98.76)]),
            candidates: vec![
                candidate("default", 4e-6, Some(1.0)),
                candidate("rows", 3.2e-6, None),
            ],
        });
        report.end(12.0);
        let lines = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Report::from_lines(&lines).to_json(), report.to_json());
        let text = report.to_markdown("ops", "ops are right");
        assert!(text.contains("**1 wrong**, 1 checks hold. 12 s."), "{text}");
        assert!(text.contains("- WRONG product: 3 is not 4\n"), "{text}");
        assert!(text.contains("- left out: programs from 7 on\n"), "{text}");
        let rows = [
            "| | Kiln | spread | predicted | PyTorch | unit |",
            "| copy | 1235 | – | – | – | GB/s |",
            "| softmax | 0.0123 | 2.1% | 0.0456 | 98.8 | GB/s |",
            "- softmax by candidates: rows 3.20 µs, 1.00x, spread 1.1%; default 4.00 µs, 1.25x, predicted 1.00x, \
             spread 1.1%",
        ];
        for row in rows {
            assert!(text.contains(row), "{text}");
        }
        // Unknown numbers are left out.
        let figures = &report.to_json()["figures"];
        let known: Vec<&String> = figures[0].as_object().unwrap().keys().collect();
        assert_eq!(known, ["beside", "kiln", "name", "spread", "unit"]);
        assert_eq!(figures[1]["predicted"], 0.0456);
        let candidates = &figures[1]["candidates"];
        assert_eq!(
            (&candidates[0]["predicted"], &candidates[1]["predicted"]),
            (&json!(1.0), &Value::Null)
        );
        assert_eq!(candidates[1]["seconds"], 3.2e-6);
        // Lines written before a process was killed stay.
        for end in 0..lines.len() {
            let Some(cut) = lines.get(..end) else {
                continue;
            };
            let (some, whole) = (Report::from_lines(cut), cut.matches('\n').count() as u64);
            let count = some.held as usize + some.wrong.len() + some.left_out.len();
            let count = count + some.notes.len() + some.figures.len();
            assert!(count as u64 >= whole.min(6), "{cut}");
        }
    }

    #[test]
    fn a_number_that_is_not_finite_is_wrong() {
        let mut report = Report::default();
        report.figure(Figure {
            name: "copy".into(),
            beside: BTreeMap::from([("PyTorch".into(), f64::INFINITY)]),
            ..Figure::default()
        });
        assert!(report.figures.is_empty() && report.wrong.len() == 1);
        assert!(report.wrong[0].contains("copy"), "{:?}", report.wrong);
    }
}
