//! Results of a part: a line of JSON each, written before the next is looked for, and a page of Markdown.

use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// A measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// The unit of all numbers but the spread.
    pub unit: String,
    /// Kiln's number, a median; `None` where something else is measured.
    pub kiln: Option<f64>,
    /// The distance between the quartiles of the first number as a part of the median, where several were taken.
    pub spread: Option<f64>,
    /// Other numbers for the same work, by whose they are.
    pub beside: Vec<(String, f64)>,
}

impl Figure {
    fn to_json(&self) -> Value {
        let beside = self.beside.iter().map(|(who, n)| (who.clone(), json!(n)));
        let beside: Map<String, Value> = beside.collect();
        json!({
            "name": self.name,
            "unit": self.unit,
            "kiln": self.kiln,
            "spread": self.spread,
            "beside": beside,
        })
    }

    fn from_json(value: &Value) -> Figure {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_string();
        let beside = value["beside"].as_object().into_iter().flatten();
        let beside = beside.filter_map(|(who, n)| Some((who.clone(), n.as_f64()?)));
        Figure {
            name: text("name"),
            unit: text("unit"),
            kiln: value["kiln"].as_f64(),
            spread: value["spread"].as_f64(),
            beside: beside.collect(),
        }
    }
}

/// What a part found.
#[derive(Debug, Default)]
pub struct Report {
    /// Checks that held.
    pub held: u64,
    /// What is wrong.
    pub wrong: Vec<String>,
    /// Checks and measurements that there was no time for.
    pub left_out: Vec<String>,
    /// Remarks.
    pub notes: Vec<String>,
    /// Measurements.
    pub figures: Vec<Figure>,
    /// Seconds it took; `None` if it did not come to its end.
    pub seconds: Option<f64>,
    /// Where each line goes.
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
                _ => self.figures.push(Figure::from_json(value)),
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

    /// Adds something wrong.
    pub fn wrong(&mut self, what: impl Into<String>) {
        let what = what.into();
        eprintln!("  WRONG {what}");
        self.add(json!({"wrong": what}));
    }

    /// Adds what there was no time for.
    pub fn leave_out(&mut self, what: impl Into<String>) {
        let what = what.into();
        eprintln!("  left out: {what}");
        self.add(json!({"left out": what}));
    }

    /// Adds a remark.
    pub fn note(&mut self, what: impl Into<String>) {
        let what = what.into();
        eprintln!("  {what}");
        self.add(json!({"note": what}));
    }

    /// Counts a check, or adds what is wrong.
    pub fn check(&mut self, what: &str, result: Result<(), String>) {
        match result {
            Ok(()) => self.add(json!({"held": what})),
            Err(why) => self.wrong(format!("{what}: {why}")),
        }
    }

    /// Adds a measurement.
    pub fn figure(&mut self, figure: Figure) {
        let kiln = figure.kiln.map(|n| ("Kiln", n)).into_iter();
        let all = kiln.chain(figure.beside.iter().map(|(who, n)| (who.as_str(), *n)));
        let shown: Vec<String> = all.map(|(who, n)| format!("{who} {n:.3}")).collect();
        let (name, unit) = (&figure.name, &figure.unit);
        eprintln!("  {name}: {} {unit}", shown.join(", "));
        self.add(json!({"figure": figure.to_json()}));
    }

    /// Adds the number of a measurement that nothing stands beside.
    pub fn number(&mut self, name: impl Into<String>, unit: &str, kiln: f64) {
        self.figure(Figure {
            name: name.into(),
            unit: unit.into(),
            kiln: Some(kiln),
            spread: None,
            beside: vec![],
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
            "figures": self.figures.iter().map(Figure::to_json).collect::<Vec<_>>(),
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
            let mut others: Vec<&str> = Vec::new();
            for (who, _) in self.figures.iter().flat_map(|f| &f.beside) {
                if !others.contains(&who.as_str()) {
                    others.push(who);
                }
            }
            let head: String = others.iter().map(|who| format!(" {who} |")).collect();
            let rule = "---:|".repeat(others.len());
            text += &format!("| | Kiln | spread |{head} unit |\n|---|---:|---:|{rule}---|\n");
            for f in &self.figures {
                let spread = f
                    .spread
                    .map_or("–".into(), |s| format!("{:.1}%", 100.0 * s));
                let beside = others.iter().map(|who| {
                    let found = f.beside.iter().find(|(other, _)| other == who);
                    format!(" {} |", found.map_or("–".into(), |(_, n)| number(*n)))
                });
                let beside: String = beside.collect();
                let kiln = f.kiln.map_or("–".into(), number);
                text += &format!("| {} | {kiln} | {spread} |{beside} {} |\n", f.name, f.unit);
            }
            text.push('\n');
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
            beside: vec![("PyTorch".into(), 98.76)],
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
            "| | Kiln | spread | PyTorch | unit |",
            "| copy | 1235 | – | – | GB/s |",
            "| softmax | 0.0123 | 2.1% | 98.8 | GB/s |",
        ];
        for row in rows {
            assert!(text.contains(row), "{text}");
        }
        // Whatever a process was about when it was killed, what it had written stays.
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
}
