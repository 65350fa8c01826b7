//! A graph for each rule: its text, the patches of its pass, and the text of the result.
//!
//! `filetests/PASS/RULE.graph` holds them; with `INSTA_UPDATE=always` the results are written anew.

use kiln_base::Machine;
use kiln_ir::Graph;
use kiln_optimize::{Options, Pass, decompose, optimize, passes};
use std::path::{Path, PathBuf};

/// The line between a graph and the result of the pass.
const RESULT: &str = "\n=>\n\n";

/// Returns the file of a rule.
fn file(pass: &Pass, rule: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("filetests");
    folder.join(pass.name).join(rule).with_extension("graph")
}

/// Returns the graph of a file, and the patches and the result that the pass gives.
fn run(pass: &Pass, rule: &str, text: &str) -> Result<[String; 2], String> {
    let before = text.split(RESULT).next().unwrap_or_default().trim_end();
    let graph = Graph::parse(before).map_err(|e| e.to_string())?;
    let options = Options {
        passes: Some(vec![pass.name, "dead_code"]),
        verify: true,
        ..Options::default()
    };
    let (after, report) = optimize(graph, &options).map_err(|e| e.to_string())?;
    match report.count(rule) {
        0 => Err(format!("the rule does not fire:\n{report}\n{after}")),
        _ => Ok([format!("{before}\n"), format!("{report}\n{after}")]),
    }
}

#[test]
fn every_rule_rewrites_its_graph() {
    let update = std::env::var("INSTA_UPDATE").is_ok_and(|v| v == "always");
    let mut failures = Vec::new();
    let mut rules = 0;
    for pass in passes() {
        for rule in pass.rules() {
            rules += 1;
            let path = file(pass, rule);
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            match run(pass, rule, &text) {
                Err(e) => failures.push(format!("{}: {e}", path.display())),
                Ok(parts) if parts.join(RESULT) == text => {}
                Ok(parts) if update => std::fs::write(&path, parts.join(RESULT)).unwrap(),
                Ok([_, result]) => failures.push(format!("{}:\n{result}", path.display())),
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(rules > 40, "{rules} rules");
}

#[test]
fn a_batch_norm_is_decomposed() {
    let folding = passes().iter().find(|p| p.name == "folding").unwrap();
    let text = std::fs::read_to_string(file(folding, "conv_batch_norm")).unwrap();
    let graph = Graph::parse(text.split(RESULT).next().unwrap()).unwrap();
    insta::assert_snapshot!(decompose(graph, &Machine::default()));
}
