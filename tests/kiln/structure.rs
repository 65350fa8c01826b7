//! Counts of the sources that must not grow: import circles, files with `unsafe`, crates that a user compiles; and the
//! form of comments.
//!
//! `cargo test --test kiln -- structure:: --nocapture` prints them, and the lines of each kind. When a count has
//! become smaller, lower it here.

use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates of the engine.
const ENGINE: [&str; 5] = ["kernel", "jit", "cpu", "cuda", "runtime"];
/// The largest number of files in an import circle.
const MAX_CIRCLE: usize = 3;
/// The number of files of the engine with `unsafe` code.
const UNSAFE: usize = 40;
/// The number of crates that a project compiles if it depends on `kiln` with its default features.
const CRATES: usize = 64;
/// Beginnings of comments that ask instead of saying: a doc comment is a noun phrase, "Returns …" or "True if …".
const QUESTIONS: [&str; 10] = [
    "What ",
    "Whether ",
    "Which ",
    "How ",
    "Says wh",
    "Says how",
    "Tells wh",
    "Determines wh",
    "Determines how",
    "Returns whether",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Rust files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    files_of(folder, "rs")
}

/// The files below a folder whose names end so.
fn files_of(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else {
        return found;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_of(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The module of a file below `src`, as a path from the crate's root.
fn module(src: &Path, file: &Path) -> Vec<String> {
    let relative = file.strip_prefix(src).unwrap().with_extension("");
    let mut path: Vec<String> = (relative.components())
        .map(|c| c.as_os_str().to_string_lossy().into_owned())
        .collect();
    if path
        .last()
        .is_some_and(|l| ["lib", "mod", "main"].contains(&l.as_str()))
    {
        path.pop();
    }
    path
}

/// The leaves of a tree of `use`.
fn leaves(tree: &str) -> Vec<String> {
    let Some((prefix, inner)) = tree.trim().split_once('{') else {
        let name = tree.trim().split(" as ").next().unwrap_or_default();
        return vec![name.trim_end_matches("::self").to_string()];
    };
    let inner = &inner[..inner.rfind('}').unwrap_or(inner.len())];
    let (mut depth, mut parts, mut from) = (0, Vec::new(), 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[from..]);
    let parts = parts.into_iter().filter(|p| !p.trim().is_empty());
    parts
        .flat_map(leaves)
        .map(|leaf| format!("{prefix}{leaf}"))
        .collect()
}

/// The code of a file without comments, and without the unit tests at its end.
fn code(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = text
        .lines()
        .map(|l| l.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The paths in code that begin at the root or above.
fn written_paths(code: &str) -> impl Iterator<Item = String> {
    let words = code.split(|c: char| !c.is_alphanumeric() && !"_:$".contains(c));
    let paths = words.filter(|w| w.starts_with("crate::") || w.starts_with("super::"));
    paths.map(|path| path.trim_end_matches(':').to_string())
}

/// A path of a module's code as one from the root.
fn from_root(path: &str, module: &[String]) -> Vec<String> {
    let parts: Vec<&str> = path.split("::").map(str::trim).collect();
    let ups = parts.iter().take_while(|p| **p == "super").count();
    // A single name belongs to a child module or to another crate.
    let above = match parts[0] {
        "crate" => 0,
        _ => module.len().saturating_sub(ups),
    };
    let rest = parts[ups..]
        .iter()
        .filter(|p| !["crate", "self", "*"].contains(p));
    let above = module[..above].iter().cloned();
    above.chain(rest.map(|p| p.to_string())).collect()
}

/// The paths from the root that a file imports or writes out, each with true if it re-exports it (`pub use`).
fn imports(code: &str, module: &[String]) -> Vec<(Vec<String>, bool)> {
    let mut found = Vec::new();
    for statement in code.split(';') {
        let tree = statement.rfind("use ").and_then(|from| {
            let line = statement[..from].rfind('\n').map_or(0, |n| n + 1);
            let before = statement[line..from].trim();
            let is_use = before.is_empty() || before.starts_with("pub");
            is_use.then(|| (line, &statement[from + 4..], before.starts_with("pub")))
        });
        let rest = tree.map_or(statement, |(line, ..)| &statement[..line]);
        found.extend(written_paths(rest).map(|path| (from_root(&path, module), false)));
        if let Some((_, tree, public)) = tree {
            let paths = leaves(tree).into_iter();
            found.extend(paths.map(|path| (from_root(&path, module), public)));
        }
    }
    found
}

/// The largest import circle of a crate.
fn largest_circle(src: &Path) -> Vec<String> {
    let files = files(src);
    let modules: BTreeMap<Vec<String>, usize> = files
        .iter()
        .enumerate()
        .map(|(i, f)| (module(src, f), i))
        .collect();
    let texts: Vec<String> = files.iter().map(|f| code(f)).collect();
    // The re-exports of each module, by name.
    let mut passed = BTreeMap::new();
    for (module, at) in &modules {
        for (path, public) in imports(&texts[*at], module) {
            if let Some(name) = path.last().filter(|_| public) {
                passed.insert((module.clone(), name.clone()), path.clone());
            }
        }
    }
    let owner = |mut path: Vec<String>| {
        for _ in 0..8 {
            let prefix = (0..=path.len())
                .rev()
                .find(|n| modules.contains_key(&path[..*n]))?;
            let name = path.get(prefix).cloned().unwrap_or_default();
            let Some(target) = passed.get(&(path[..prefix].to_vec(), name)) else {
                return modules.get(&path[..prefix]);
            };
            path = target
                .iter()
                .cloned()
                .chain(path.drain(prefix + 1..))
                .collect();
        }
        None
    };
    let mut graph = DiGraph::<usize, ()>::new();
    let nodes: Vec<_> = (0..files.len()).map(|i| graph.add_node(i)).collect();
    for (module, at) in &modules {
        let own = imports(&texts[*at], module)
            .into_iter()
            .filter(|(_, public)| !public);
        for to in own
            .filter_map(|(path, _)| owner(path))
            .filter(|to| *to != at)
        {
            graph.add_edge(nodes[*at], nodes[*to], ());
        }
    }
    let largest = tarjan_scc(&graph)
        .into_iter()
        .max_by_key(Vec::len)
        .unwrap_or_default();
    let names = largest
        .iter()
        .map(|n| files[graph[*n]].strip_prefix(src).unwrap());
    let mut names: Vec<String> = names.map(|n| n.display().to_string()).collect();
    names.sort();
    if names.len() > 1 { names } else { Vec::new() }
}

#[test]
fn import_circles_are_small() {
    let mut large = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let circle = largest_circle(&entry.path().join("src"));
        if circle.len() > MAX_CIRCLE {
            let (count, files) = (circle.len(), circle.join(" "));
            large.push(format!("{name}: {count} files import each other: {files}"));
        }
    }
    assert!(large.is_empty(), "{}", large.join("\n"));
}

#[test]
fn unsafe_code_stays_in_its_files() {
    let engine = ENGINE
        .iter()
        .flat_map(|c| files(&root().join("crates").join(c).join("src")));
    let has = |f: &PathBuf| {
        code(f)
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|w| w == "unsafe")
    };
    let count = engine.filter(has).count();
    println!("{count} files of the engine have unsafe code");
    assert!(count <= UNSAFE, "{count} files, at most {UNSAFE}");
}

#[test]
fn a_project_compiles_few_crates() {
    let tree = [
        "tree",
        "-p",
        "kiln",
        "-e",
        "normal,build",
        "--prefix",
        "none",
        "--offline",
    ];
    let output = Command::new(env!("CARGO"))
        .args(tree)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text
        .lines()
        .filter_map(|l| l.split(' ').next())
        .filter(|n| !n.is_empty());
    let names: std::collections::BTreeSet<&str> = names.collect();
    let own = names.iter().filter(|n| n.starts_with("kiln")).count();
    println!("{} crates, {own} of them Kiln's", names.len());
    assert!(
        names.len() <= CRATES,
        "{} crates, at most {CRATES}",
        names.len()
    );
}

#[test]
fn comments_are_statements() {
    let folders = ["crates", "tests", "benches", "examples"];
    let files = ["rs", "cu"].into_iter().flat_map(|extension| {
        let folders = folders.iter();
        folders.flat_map(move |folder| files_of(&root().join(folder), extension))
    });
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut before = "";
        for (i, line) in text.lines().enumerate() {
            let line = line.trim_start();
            // Of a comment, the first line.
            let begins = !before.starts_with("//") || ["//", "///", "//!"].contains(&before);
            let words = line.trim_start_matches(['/', '!']).trim_start();
            let asks = QUESTIONS.iter().any(|q| words.starts_with(q));
            if line.starts_with("//") && begins && asks {
                let file = file.strip_prefix(root()).unwrap_or(&file);
                found.push(format!("{}:{}: {line}", file.display(), i + 1));
            }
            before = line.trim_end();
        }
    }
    let (count, all) = (found.len(), found.join("\n"));
    assert!(found.is_empty(), "{count} comments ask:\n{all}");
}

/// Names that the glossary of CONTRIBUTING.md retired, and those to use instead. Each said that something is held, cut,
/// placed or bounded, but not what.
const RETIRED: &[(&str, &str)] = &[
    ("Aside", "the instruction or copy that it is"),
    ("Behind", "Epilogue"),
    ("Beside", "SharedLaunch"),
    (
        "Block",
        "the thing that is cut into blocks: LineBlock, TileBlock; DeviceBlock for memory",
    ),
    ("Cut", "Blocking, TileSizes or Schedule"),
    ("DEEPEST", "MAX_DEPTH"),
    ("FEW", "MAX_… or MIN_…"),
    ("Finish", "Epilogue"),
    ("Given", "Arguments, or the thing that is given"),
    ("Each", "Depthwise"),
    ("Held", "the thing that is held"),
    ("Kept", "Buffers, or the thing that is kept"),
    ("LARGEST", "MAX_…"),
    ("LEAST", "MIN_…"),
    ("LONGEST", "MAX_…"),
    ("Laid", "the thing that is laid out, or Layout"),
    ("MANY", "MAX_… or MIN_…"),
    ("MOST", "MAX_…"),
    ("Made", "Prologue, Materialised, or the thing that is made"),
    ("Making", "Builder"),
    ("Part", "the whole that it is a part of: PlanPart"),
    ("Parts", "Partial… or the things that they are parts of"),
    ("Place", "Address, Location, Range or Allocation"),
    (
        "Printed",
        "Emitted for machine code, KernelCalls for lowered work",
    ),
    ("Printing", "Emitter"),
    ("Reach", "Footprint"),
    ("Taken", "the thing that is taken"),
    ("Told", "Parameters"),
    ("Turn", "Transpose, SerialPoints or Phase"),
    ("Turns", "Twiddles, Phases or Tickets"),
    ("Way", "Candidate, or Schedule"),
];

/// The definitions that carry a retired name on purpose.
const STILL: &[(&str, &str)] = &[
    ("Made", "testkit/src/rules/maker.rs"),
    ("Part", "gpu-proof/src/lib.rs"),
    ("Turn", "gpu-emulator/src/exec/block.rs"),
];

#[test]
fn retired_names_stay_retired() {
    let mut found = Vec::new();
    for file in ["crates", "src"]
        .iter()
        .flat_map(|f| files(&root().join(f)))
    {
        let path = file.strip_prefix(root()).unwrap().display().to_string();
        if path.contains("/tests/") {
            continue;
        }
        for line in code(&file).lines() {
            let words: Vec<&str> = line
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .collect();
            for pair in words.windows(2) {
                let defines = ["struct", "enum", "trait", "type", "const"].contains(&pair[0]);
                let instead = RETIRED.iter().find(|(name, _)| defines && *name == pair[1]);
                let still = |name: &str| STILL.iter().any(|(n, f)| *n == name && path.ends_with(f));
                if let Some((name, instead)) = instead.filter(|(name, _)| !still(name)) {
                    found.push(format!("{path}: {name}; use {instead}"));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The targets of relative links in Markdown exist.
#[test]
fn links_lead_somewhere() {
    let folders = ["docs", "benches", "crates", "examples"];
    let below = folders
        .iter()
        .flat_map(|folder| files_of(&root().join(folder), "md"));
    let own = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|file| root().join(file));
    let mut links = 0;
    for file in own.into_iter().chain(below) {
        let text = std::fs::read_to_string(&file).unwrap();
        // Code is between fences.
        let prose: String = text.split("```").step_by(2).collect();
        for link in prose.split("](").skip(1) {
            let target = link.split([')', '#', ' ']).next().unwrap_or_default();
            if target.is_empty() || target.contains(':') {
                continue;
            }
            let to = file.parent().unwrap().join(target);
            assert!(to.exists(), "{} links to {target}", file.display());
            links += 1;
        }
    }
    assert!(links > 100, "{links} links");
}

/// The paths in backticks in the book and in CONTRIBUTING.md exist. A path may begin in any folder: `cpu/src/lib.rs`.
/// Folders end with a slash. Names in capitals are placeholders.
#[test]
fn paths_in_the_book_exist() {
    let found = Command::new("git")
        .arg("ls-files")
        .current_dir(root())
        .output();
    let found = String::from_utf8(found.unwrap().stdout).unwrap();
    let found: Vec<String> = found.lines().map(|path| format!("/{path}")).collect();
    let exists = |path: &str| {
        let end = format!("/{path}");
        found.iter().any(|f| match path.ends_with('/') {
            true => f.contains(&end),
            false => f.ends_with(&end),
        })
    };
    /// Files that a command writes.
    const WRITTEN: [&str; 1] = ["report/gpu.md"];
    let (mut paths, mut missing) = (0, Vec::new());
    let book = files_of(&root().join("docs"), "md").into_iter();
    for file in book.chain([root().join("CONTRIBUTING.md")]) {
        let text = std::fs::read_to_string(&file).unwrap();
        let prose: String = text.split("```").step_by(2).collect();
        for path in prose.split('`').skip(1).step_by(2) {
            let is_path = |c: char| c.is_ascii_alphanumeric() || "/._-{},".contains(c);
            let name = path.rsplit('/').next().unwrap_or_default();
            let is_file = [".rs", ".cu", ".md", ".graph", ".py"]
                .iter()
                .any(|e| name.ends_with(e));
            let placeholder = path
                .split(['/', '.'])
                .any(|s| s.len() > 1 && s.to_uppercase() == s);
            let begins = path.starts_with(|c: char| c.is_ascii_alphanumeric());
            if !path.chars().all(is_path)
                || !(path.contains('/') && begins && (is_file || name.is_empty()))
                || placeholder
                || WRITTEN.contains(&path)
            {
                continue;
            }
            for path in alternatives(path) {
                paths += 1;
                if !exists(&path) {
                    missing.push(format!("{}: {path}", file.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(paths > 200, "{paths} paths");
}

/// The paths that `a/{b,c}.rs` stands for.
fn alternatives(path: &str) -> Vec<String> {
    let Some((start, rest)) = path.split_once('{') else {
        return vec![path.to_string()];
    };
    let Some((names, end)) = rest.split_once('}') else {
        return vec![path.to_string()];
    };
    let names = names.split(',');
    names
        .flat_map(|name| alternatives(&format!("{start}{name}{end}")))
        .collect()
}

/// The largest number of lines that users link. A change that needs more raises it, and says what for.
const MAX_PRODUCT_LINES: usize = 214_600;

/// Prints lines by kind: code that users link, tools for tests, tests.
#[test]
fn the_product_does_not_outgrow_its_limit() {
    const TOOLS: [&str; 8] = [
        "conformance",
        "fake-cuda",
        "goldens",
        "gpu-emulator",
        "gpu-proof",
        "testkit",
        "x86-interpreter",
        "digits",
    ];
    let mut lines = [0; 3];
    for file in files(&root().join("crates"))
        .into_iter()
        .chain(files(&root().join("tests")))
    {
        let path = file.strip_prefix(root()).unwrap().display().to_string();
        let is_test =
            path.starts_with("tests") || path.contains("/tests") || path.contains("/benches/");
        let is_tool = TOOLS
            .iter()
            .any(|t| path.starts_with(&format!("crates/{t}/")))
            || path.contains("ir/src/fuzz");
        let kind = if is_test { 2 } else { usize::from(is_tool) };
        lines[kind] += std::fs::read_to_string(&file).unwrap().lines().count();
    }
    println!(
        "{} lines of the product, {} of test tools, {} of tests",
        lines[0], lines[1], lines[2]
    );
    assert!(lines.iter().all(|n| *n > 10_000));
    assert!(lines[0] <= MAX_PRODUCT_LINES, "{} lines", lines[0]);
}
