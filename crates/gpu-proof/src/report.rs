//! What a part found, as JSON and as Markdown.

use serde_json::{Value, json};

/// A measurement, of PyTorch too where that is installed.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// The unit of both numbers.
    pub unit: String,
    /// Kiln's number.
    pub kiln: f64,
    /// PyTorch's number.
    pub torch: Option<f64>,
}

/// What a part found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Checks that held.
    pub held: u64,
    /// What is wrong.
    pub wrong: Vec<String>,
    /// What was left out, and other remarks.
    pub notes: Vec<String>,
    /// Measurements.
    pub figures: Vec<Figure>,
    /// Seconds it took.
    pub seconds: f64,
}

impl Report {
    /// Adds something wrong.
    pub fn wrong(&mut self, what: impl Into<String>) {
        let what = what.into();
        eprintln!("  WRONG {what}");
        self.wrong.push(what);
    }

    /// Adds a remark.
    pub fn note(&mut self, what: impl Into<String>) {
        let what = what.into();
        eprintln!("  {what}");
        self.notes.push(what);
    }

    /// Counts a check, or adds what is wrong.
    pub fn check(&mut self, what: &str, result: Result<(), String>) {
        match result {
            Ok(()) => self.held += 1,
            Err(why) => self.wrong(format!("{what}: {why}")),
        }
    }

    /// Adds a measurement.
    pub fn figure(&mut self, name: impl Into<String>, unit: &str, kiln: f64, torch: Option<f64>) {
        let name = name.into();
        let beside = torch.map_or(String::new(), |t| format!(", PyTorch {t:.3}"));
        eprintln!("  {name}: {kiln:.3}{beside} {unit}");
        self.figures.push(Figure {
            name,
            unit: unit.to_string(),
            kiln,
            torch,
        });
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let figure =
            |f: &Figure| json!({"name": f.name, "unit": f.unit, "kiln": f.kiln, "torch": f.torch});
        json!({
            "held": self.held,
            "wrong": self.wrong,
            "notes": self.notes,
            "figures": self.figures.iter().map(figure).collect::<Vec<_>>(),
            "seconds": self.seconds,
        })
    }

    /// From JSON; what is missing is empty.
    pub fn from_json(value: &Value) -> Report {
        let list = |key: &str| value[key].as_array().cloned().unwrap_or_default();
        let texts = |key: &str| {
            let texts = list(key).into_iter();
            texts
                .filter_map(|t| Some(t.as_str()?.to_string()))
                .collect::<Vec<_>>()
        };
        let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
        let figure = |f: &Value| Figure {
            name: text(&f["name"]),
            unit: text(&f["unit"]),
            kiln: f["kiln"].as_f64().unwrap_or(f64::NAN),
            torch: f["torch"].as_f64(),
        };
        Report {
            held: value["held"].as_u64().unwrap_or(0),
            wrong: texts("wrong"),
            notes: texts("notes"),
            figures: list("figures").iter().map(figure).collect(),
            seconds: value["seconds"].as_f64().unwrap_or(0.0),
        }
    }

    /// As a section of a page.
    pub fn to_markdown(&self, name: &str, claim: &str) -> String {
        let state = match (self.wrong.is_empty(), self.held) {
            (true, 0) => String::new(),
            (true, n) => format!(" {n} checks hold."),
            (false, n) => format!(" **{} wrong**, {n} checks hold.", self.wrong.len()),
        };
        let mut text = format!("## {name}\n\n{claim}.{state} {:.0} s.\n\n", self.seconds);
        if !self.figures.is_empty() {
            text += "| | Kiln | PyTorch | unit |\n|---|---:|---:|---|\n";
            for f in &self.figures {
                let torch = f.torch.map_or("–".to_string(), number);
                text += &format!(
                    "| {} | {} | {torch} | {} |\n",
                    f.name,
                    number(f.kiln),
                    f.unit
                );
            }
            text.push('\n');
        }
        for (list, mark) in [(&self.wrong, "WRONG "), (&self.notes, "")] {
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
    fn a_report_survives_json_and_is_readable() {
        let mut report = Report::default();
        report.check("sum", Ok(()));
        report.check("product", Err("3 is not\n4".into()));
        report.note("skipped: loops");
        report.figure("copy", "GB/s", 1234.5678, None);
        report.figure("softmax", "GB/s", 0.012345, Some(98.76));
        assert_eq!(Report::from_json(&report.to_json()), report);
        let text = report.to_markdown("ops", "ops are right");
        assert!(text.contains("**1 wrong**, 1 checks hold."), "{text}");
        assert!(text.contains("- WRONG product: 3 is not 4\n"), "{text}");
        assert!(text.contains("| copy | 1235 | – | GB/s |"), "{text}");
        assert!(
            text.contains("| softmax | 0.0123 | 98.8 | GB/s |"),
            "{text}"
        );
    }
}
