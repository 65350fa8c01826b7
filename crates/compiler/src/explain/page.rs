//! A self-contained page that shows a compilation.

use super::graphs::graphs;
use super::html::{bytes, colour, count, escaped, inner_name};
use super::timeline::timeline;
use super::{ConversionInfo, Explain, KernelInfo};
use crate::Recomputed;
use kiln_base::Dim;
use kiln_codegen::{Launch, tile_text};
use kiln_optimize::Fired;
use kiln_plan::Kernel;
use std::fmt::Write;

/// The page.
pub(super) fn page(explain: &Explain) -> String {
    let mut out = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Kiln: what was \
         compiled</title>\n<style>\n",
    );
    out.push_str(include_str!("page.css"));
    out.push_str("</style>\n</head>\n<body>\n<h1>What was compiled</h1>\n");
    out.push_str(&facts(explain));
    out.push_str(&reasons(explain));
    out.push_str("<h2>Graph</h2>\n");
    match &explain.stages {
        Some(stages) => out.push_str(&graphs(stages)),
        None => out.push_str("<p>The plan cache keeps no graphs.</p>\n"),
    }
    out.push_str(&kernels(explain));
    out.push_str(&layouts(explain));
    out.push_str("<h2>Memory of a run</h2>\n");
    out.push_str(&timeline(explain));
    out.push_str("\n<h2>Rewrites</h2>\n");
    out.push_str(&rewrites(explain));
    out.push_str(&recomputed(explain));
    out.push_str("<script>\n");
    out.push_str(include_str!("page.js"));
    out.push_str("</script>\n</body>\n</html>\n");
    out
}

fn facts(explain: &Explain) -> String {
    let mut out = String::from("<ul class=\"facts\">\n");
    let mut fact = |number: String, label: &str| {
        let _ = writeln!(
            out,
            "<li><b>{}</b> {}</li>",
            escaped(&number),
            escaped(label)
        );
    };
    if let Some(stages) = &explain.stages {
        fact(stages.recorded.len().to_string(), "nodes recorded");
        fact(stages.optimized.len().to_string(), "nodes after rewrites");
    }
    fact(explain.rewrites.len().to_string(), "rewrites");
    fact(explain.kernels_run().to_string(), "kernels in every run");
    if explain.concurrent() > 0 {
        let launches = explain.launches_run().to_string();
        let concurrent = explain.concurrent();
        fact(
            launches,
            &format!("launches, of which {concurrent} start together with another"),
        );
    }
    let prepared = explain.kernels_prepared().to_string();
    fact(prepared, "kernels when a parameter has changed");
    if let Some(m) = &explain.memory {
        fact(bytes(m.peak as f64), "of temporaries");
        fact(bytes(m.outputs as f64), "of outputs");
        fact(bytes(m.prepared as f64), "prepared");
    }
    fact(
        format!("{:.1} ms", explain.time.as_secs_f64() * 1e3),
        "to compile",
    );
    out.push_str("</ul>\n");
    out
}

/// A list of texts, `ol` or `ul`, with attributes.
fn list(tag: &str, attributes: &str, items: &mut dyn Iterator<Item = String>) -> String {
    let items = items.map(|item| format!("<li>{}</li>\n", escaped(item.trim())));
    format!(
        "<{tag}{attributes}>\n{}</{tag}>\n",
        items.collect::<String>()
    )
}

/// The reasons for the program's plans.
fn reasons(explain: &Explain) -> String {
    let reasons = explain.reasons.list();
    if reasons.is_empty() {
        return String::new();
    }
    let list = list("ol", "", &mut reasons.into_iter());
    format!("<h2>Why it was compiled</h2>\n{list}")
}

fn kernels(explain: &Explain) -> String {
    let mut out = String::from(
        "<h2>Kernels</h2>\n<div class=\"head\"><span></span><span>kernel</span><span></span>\
         <span>operations</span><span>bytes</span><span>per byte</span><span>ops</span></div>\n",
    );
    for kernel in &explain.kernels {
        let launch = explain.stages.as_ref().map(|s| {
            let at = s.launch(kernel.prepared, kernel.step);
            (at.to_string(), at, &s.sequence.launches[at])
        });
        out.push_str(&row(kernel, launch));
    }
    out
}

/// A kernel, with its launch, the launch's name on the page and its colour.
fn row(kernel: &KernelInfo, launch: Option<(String, usize, &Launch)>) -> String {
    let when = match (kernel.prepared, kernel.concurrent) {
        (true, _) => "prepare",
        (_, true) => "concurrent",
        _ => "",
    };
    let (id, swatch) = match &launch {
        Some((name, at, _)) => (
            format!(" id=\"k{name}\""),
            format!(" style=\"background:{}\"", colour(*at)),
        ),
        None => (String::new(), String::new()),
    };
    let (flops, size) = (&kernel.cost.flops, &kernel.cost.bytes);
    let intensity = match (flops.as_const(), size.as_const()) {
        (Some(f), Some(b)) if b > 0 => format!("{:.2}", f as f64 / b as f64),
        _ => String::new(),
    };
    let mut items = kernel.ops.clone();
    match (&kernel.choice, &kernel.algorithm) {
        (Some(choice), _) => items.push(format!("by {choice}")),
        (None, Some(algorithm)) => items.push(format!("by {algorithm}")),
        (None, None) => {}
    }
    items.extend(kernel.schedule.clone());
    items.extend(kernel.fusion.iter().map(|choice| format!("fused {choice}")));
    items.extend(kernel.why_not.iter().map(|why| format!("not fused: {why}")));
    let mut out = format!(
        "<details class=\"k\"{id}><summary><span class=\"swatch\"{swatch}></span><span>{}</span>\
         <span>{when}</span><span>{}</span><span>{}</span><span>{intensity}</span><span>{}</span>\
         </summary>\n<div class=\"in\">\n{}",
        escaped(&kernel.name),
        amount(flops, count),
        amount(size, bytes),
        kernel.ops.len(),
        list("ul", " class=\"ops\"", &mut items.into_iter()),
    );
    let mut code = |title: &str, text: &str| {
        let text = escaped(text);
        let _ = writeln!(
            out,
            "<details><summary style=\"display:block\">{title}</summary><pre>{text}</pre></details>"
        );
    };
    if let Some(kir) = &kernel.kir {
        code("Kernel IR", kir);
    }
    if let Some((.., launch)) = &launch {
        match &*launch.kernel {
            Kernel::Cuda(k) => code("CUDA C++", &k.source()),
            other => {
                for program in other.programs() {
                    code("tile program", &tile_text(program));
                }
            }
        }
    }
    // In the order of the bodies, and of the launches in each.
    let mut launches = launch.iter().flat_map(|(name, _, launch)| {
        let bodies = launch.bodies.iter().enumerate();
        bodies.flat_map(move |(body, sequence)| {
            let launches = sequence.launches.iter().enumerate();
            launches.map(move |(at, l)| (inner_name(name, body, at), at, l))
        })
    });
    for inner in &kernel.inner {
        out.push_str(&row(inner, launches.next()));
    }
    out.push_str("</div></details>\n");
    out
}

fn amount(n: &Dim, text: impl Fn(f64) -> String) -> String {
    match n.as_const() {
        Some(n) => text(n as f64),
        None => escaped(&n.to_string()),
    }
}

/// The layout of images in memory, and the choice behind it.
fn layouts(explain: &Explain) -> String {
    if explain.layout.convolutions == 0 {
        return String::new();
    }
    let report = escaped(&explain.layout.to_string());
    let mut out = format!("<h2>Layout of images</h2>\n<p>{report}</p>\n");
    if !explain.conversions.is_empty() {
        let mut conversions = explain.conversions.iter().map(ConversionInfo::to_string);
        out += &list("ul", " class=\"ops\"", &mut conversions);
    }
    if let Some(choice) = explain.tuning.layouts() {
        let _ = writeln!(out, "<p>layouts {}</p>", escaped(&choice.to_string()));
    }
    out
}

fn rewrites(explain: &Explain) -> String {
    if explain.rewrites.is_empty() {
        return "<p>None.</p>\n".to_string();
    }
    let mut rewrites = explain.rewrites.iter().map(Fired::to_string);
    list("ol", "", &mut rewrites)
}

fn recomputed(explain: &Explain) -> String {
    if explain.recomputed.is_empty() {
        return String::new();
    }
    let mut values = explain.recomputed.iter().map(Recomputed::to_string);
    format!(
        "<h2>Recomputed values</h2>\n{}",
        list("ul", "", &mut values)
    )
}
