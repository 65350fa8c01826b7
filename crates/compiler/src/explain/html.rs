//! Helpers of pages and drawings: text in HTML, colours, numbers for people.

use kiln_ir::{Node, Op, Role};

/// The rules of tables of text and numbers.
const TABLES: &str = "body{margin:0 auto;padding:16px 24px;max-width:1300px;font:14px/1.45 system-ui,sans-serif;\
    color:#1c2430}h1{font-size:20px}h2{font-size:16px}table{border-collapse:collapse;width:100%}\
    td,th{padding:2px 8px;text-align:left;border-bottom:1px solid #e3e8ee;overflow-wrap:anywhere}\
    td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}";

/// The beginning of a page of tables, up to its body, with further rules.
pub fn page_head(title: &str, style: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{}</title>\n\
         <style>{TABLES}{style}</style>\n</head>\n<body>\n",
        escaped(title)
    )
}

/// Escapes text between tags or quotes.
pub fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let text = text.replace('>', "&gt;").replace('"', "&quot;");
    text.replace('\'', "&#39;")
}

/// Returns a light colour for a kernel; neighbours in the list differ in hue.
pub(super) fn colour(kernel: usize) -> String {
    let hue = (kernel as f64 * 137.508) % 360.0;
    let lightness = [0.80, 0.70, 0.86][kernel % 3];
    // Conversion from HSL with a saturation of 0.62.
    let a = 0.62 * f64::min(lightness, 1.0 - lightness);
    let rgb = |n: f64| {
        let k = (n + hue / 30.0) % 12.0;
        let x = lightness - a * f64::min(k - 3.0, 9.0 - k).clamp(-1.0, 1.0);
        (x * 255.0).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", rgb(0.0), rgb(8.0), rgb(4.0))
}

/// A number of bytes for people.
pub fn bytes(n: f64) -> String {
    scaled(n, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

pub(super) fn count(n: f64) -> String {
    scaled(n, 1000.0, &["", "k", "M", "G", "T"])
}

fn scaled(mut n: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while n >= base && unit + 1 < units.len() {
        n /= base;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && n < 100.0);
    format!("{n:.digits$} {}", units[unit])
        .trim_end()
        .to_string()
}

/// The name of a node in drawings.
pub(super) fn label(node: &Node) -> String {
    let fact = node
        .facts
        .first()
        .map_or_else(String::new, |f| f.to_string());
    match &node.op {
        Op::Input(i) => match i.role {
            Role::Parameter => format!("parameter {} {fact}", i.index),
            Role::RandomKey => format!("random key {}", i.index),
            Role::Data => format!("input {} {fact}", i.index),
        },
        Op::Full(full) => format!("{} {fact}", full.value.as_f64()),
        op => format!("{} {fact}", op.name()),
    }
}

/// Returns the name on the page of a launch in a body of another.
pub(super) fn inner_name(outer: &str, body: usize, launch: usize) -> String {
    format!("{outer}-{body}-{launch}")
}
