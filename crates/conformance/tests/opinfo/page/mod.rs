//! `docs/pytorch.md`: its tables are generated from the rows in this folder, whose calls are compiled.
//! `KILN_UPDATE_DOCS=1` writes them.

mod activations;
mod amp;
mod autograd;
mod calls;
mod convolution;
mod creation;
mod derivatives;
mod devices;
mod elementwise;
mod errors;
mod first;
mod indexing;
mod layers;
mod linalg;
mod losses;
mod missing;
mod modules;
mod products;
mod reductions;
mod scan;
mod shape;
mod sorting;

use kiln_goldens::samples::listed;
use kiln_goldens::{Case, Folder, ids};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// PyTorch's names of an operator, and the call here.
struct Row {
    /// PyTorch's names, some with arguments in parentheses.
    torch: &'static [&'static str],
    /// The call.
    code: &'static str,
    /// The differences from PyTorch.
    note: &'static str,
}

/// A table of rows whose calls are compiled, with the names that they use as parameters; [`calls`] runs some.
macro_rules! rows {
    (($($parameters:tt)*); $($($torch:literal),+ = { $($code:tt)* } $($note:literal)?;)*) => {
        pub(super) const ROWS: &[super::Row] = &[$(super::Row {
            torch: &[$($torch),+],
            code: stringify!($($code)*),
            note: concat!($($note)?),
        }),*];

        /// A function that never runs: the calls need only compile.
        #[allow(dead_code, clippy::let_unit_value, clippy::too_many_arguments)]
        fn compiled($($parameters)*) -> Result<()> {
            $(let _ = { $($code)* };)*
            Ok(())
        }

        /// The call of a row, and the tensors among its results.
        #[allow(dead_code, unused, clippy::too_many_arguments)]
        pub(super) fn call(row: usize, $($parameters)*) -> Option<super::calls::Called> {
            use super::calls::{CallResult, Other, Tensors};
            let mut at = 0;
            $(if at == row {
                let mut call = || -> Result<_> { Ok({ $($code)* }) };
                let found = call().map(|value| (&CallResult(&value)).tensors());
                return Some((stringify!($($code)*), found));
            }
            at += 1;)*
            None
        }
    };
}
use rows;

const GROUPS: &[(&str, &[Row])] = &[
    ("elementwise", elementwise::ROWS),
    ("reductions", reductions::ROWS),
    ("products", products::ROWS),
    ("linalg", linalg::ROWS),
    ("convolution", convolution::ROWS),
    ("activations", activations::ROWS),
    ("losses", losses::ROWS),
    ("indexing", indexing::ROWS),
    ("shape", shape::ROWS),
    ("sorting", sorting::ROWS),
    ("creation", creation::ROWS),
    ("autograd", autograd::ROWS),
    ("modules", modules::ROWS),
    ("amp", amp::ROWS),
];

fn every_row() -> impl Iterator<Item = &'static Row> {
    GROUPS.iter().flat_map(|(_, rows)| rows.iter())
}

/// An operator's name without arguments.
fn bare(torch: &str) -> &str {
    torch.split(['(', ' ']).next().unwrap_or(torch)
}

/// The results of PyTorch's samples for an operator.
struct Samples {
    /// True if some are of the core tier.
    core: bool,
    /// True if all of them pass.
    pass: bool,
}

/// The results by the operator's name without `torch.`.
static SAMPLES: LazyLock<BTreeMap<String, Samples>> = LazyLock::new(|| {
    let goldens = Folder::opinfo("page").unwrap();
    let root = goldens.path();
    let mut out = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for id in ids(root).unwrap() {
        let folder = id.split('/').next().unwrap().to_string();
        if !seen.insert(folder.clone()) {
            continue;
        }
        let case = Case::load(root, &id).unwrap();
        let op = case.op.strip_prefix("promo.").unwrap_or(&case.op);
        let found = out.entry(op.to_string()).or_insert(Samples {
            core: false,
            pass: true,
        });
        found.core |= case.tier == "core";
        found.pass &= listed().contains(&folder[..]);
    }
    out
});

/// The cell that says whether the samples of a row's operators pass.
fn checked(row: &Row) -> &'static str {
    let names = row.torch.iter().map(|name| bare(name));
    let names = names.filter_map(|n| n.strip_prefix("torch.").or(n.strip_prefix("Tensor.")));
    let found: Vec<&Samples> = names.filter_map(|n| SAMPLES.get(n)).collect();
    let core = found.iter().any(|s| s.core);
    match (found.is_empty(), found.iter().all(|s| s.pass)) {
        (true, _) => "",
        (_, true) if core => "core",
        (_, true) => "ext",
        (_, false) => "in part",
    }
}

/// A cell of a table; `|` would end it.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// On one line, which the text of a long call is not.
fn code(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    format!("`{}`", cell(&words.join(" ")))
}

fn codes(names: &[&str]) -> String {
    names.iter().map(|n| code(n)).collect::<Vec<_>>().join(", ")
}

/// Every table by its name on the page.
fn tables() -> Vec<(&'static str, String)> {
    let mut out = Vec::new();
    let mut first = "| PyTorch | Kiln |\n|---|---|\n".to_string();
    for row in first::ROWS {
        writeln!(first, "| {} | {} |", codes(row.torch), code(row.code)).unwrap();
    }
    out.push(("first", first));
    for (name, rows) in GROUPS {
        let mut table = "| PyTorch | Kiln | checked | |\n|---|---|---|---|\n".to_string();
        for row in *rows {
            let (torch, kiln) = (codes(row.torch), code(row.code));
            let (mark, note) = (checked(row), cell(row.note));
            writeln!(table, "| {torch} | {kiln} | {mark} | {note} |").unwrap();
        }
        out.push((name, table));
    }
    let mut missing = "| PyTorch | |\n|---|---|\n".to_string();
    for (names, why) in missing::MISSING.iter() {
        writeln!(missing, "| {} | {why} |", codes(names)).unwrap();
    }
    out.push(("missing", missing));
    out.push(("autocast", amp::lists()));
    out.push(("levels", amp::levels()));
    out
}

/// The page with each table between its marks replaced.
fn render(page: &str, tables: &[(&str, String)]) -> String {
    let mut page = page.to_string();
    for (name, table) in tables {
        let (begin, end) = (format!("<!-- table: {name} -->\n"), "<!-- end -->");
        let start = page.find(&begin).expect("a mark for each table") + begin.len();
        let length = page[start..].find(end).expect("a mark behind each table");
        page.replace_range(start..start + length, table);
    }
    page
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_page_shows_these_tables() {
    let path = repository().join("docs/pytorch.md");
    let page = std::fs::read_to_string(&path)
        .unwrap()
        .replace("\r\n", "\n");
    let rendered = render(&page, &tables());
    if std::env::var_os("KILN_UPDATE_DOCS").is_some() {
        std::fs::write(&path, rendered).unwrap();
    } else {
        let stale = page.lines().zip(rendered.lines()).find(|(a, b)| a != b);
        assert!(
            page == rendered,
            "run this test with KILN_UPDATE_DOCS=1; the first stale line, and what it should be: {stale:?}"
        );
    }
}

#[test]
fn the_first_ten_minutes_run() {
    // w = 1 − 0.1 · xᵀ · (x · 1 − 1) / 2
    let expected: [&[f32]; 5] = [
        &[2.0, 2.0],
        &[10.0],
        &[17.0, 21.0],
        &[-0.8, -0.8, -1.6, -1.6],
        &[0.0; 4],
    ];
    let found = first::run().unwrap();
    let rounded = |v: &f32| (v * 1e4).round() / 1e4;
    let found: Vec<Vec<f32>> = found
        .iter()
        .map(|r| r.iter().map(rounded).collect())
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn every_operator_with_samples_is_on_the_page() {
    let rows: BTreeSet<&str> = every_row().flat_map(|r| r.torch).map(|n| bare(n)).collect();
    let missing = missing::names();
    let has = |set: &BTreeSet<&str>, op: &str| {
        ["torch", "Tensor"]
            .iter()
            .any(|p| set.contains(&format!("{p}.{op}")[..]))
    };
    let absent: Vec<&String> = SAMPLES
        .keys()
        .filter(|op| !has(&rows, op) && !has(&missing, op))
        .collect();
    assert!(absent.is_empty(), "no row shows {absent:?}");
    let passing = SAMPLES.iter().filter(|(_, s)| s.pass);
    let denied: Vec<&String> = passing
        .map(|(op, _)| op)
        .filter(|op| has(&missing, op))
        .collect();
    assert!(
        denied.is_empty(),
        "said to be missing, but their samples pass: {denied:?}"
    );
}

#[test]
fn every_name_in_the_text_is_there() {
    let path = repository().join("docs/pytorch.md");
    let page = std::fs::read_to_string(path).unwrap();
    let mut known = BTreeSet::new();
    for source in [
        "crates/lazy/src",
        "crates/tensor/src",
        "crates/nn/src",
        "crates/base/src/dtype.rs",
        "crates/formats/src",
        "crates/data/src",
        "crates/vision/src",
        "crates/observe/src",
        "crates/distributed/src",
        "crates/distributions/src",
        "crates/tensorboard/src",
        "crates/models/src",
        "src",
    ] {
        scan::code_words(&repository().join(source), &mut known);
    }
    let strange = scan::names_in_text(&page).into_iter();
    let strange: BTreeSet<String> = strange
        .filter(|name| !known.contains(name) && !scan::NOT_OURS.contains(&&name[..]))
        .collect();
    assert!(
        strange.is_empty(),
        "the text names what is not there: {strange:?}"
    );
    let stale: Vec<&&str> = scan::NOT_OURS
        .iter()
        .filter(|n| !page.contains(**n))
        .collect();
    assert!(stale.is_empty(), "the page does not say {stale:?} any more");
}

#[test]
fn every_operator_of_a_tensor_is_on_the_page() {
    let source = repository().join("crates/tensor/src");
    let defined = scan::operators(&source);
    for name in [
        "add",
        "conv2d",
        "max_pool1d_with_indices",
        "einsum",
        "add_",
        "backward",
    ] {
        assert!(defined.contains(name), "the scan misses {name}");
    }
    let called: BTreeSet<String> = every_row().flat_map(|row| scan::calls(row.code)).collect();
    let undocumented: Vec<&String> = defined.difference(&called).collect();
    assert!(undocumented.is_empty(), "no row shows {undocumented:?}");
}
