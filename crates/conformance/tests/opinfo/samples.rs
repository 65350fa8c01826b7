//! Every sample on every engine: what is listed as passing passes, and nothing is wrong.

use kiln_conformance::{Array, Case, Engine, Kind, Outcome, Verdict, ids, judge, run, unpack};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Samples whose expected bf16 values are further from the exact ones than their own tolerance, since
/// PyTorch rounds inside the operator where Kiln rounds once. Kiln's values are compared with f64.
const ROUNDED_INSIDE: &[&str] = &["matrix_exp/bf16_00"];

/// A folder that is removed when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kiln-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The folder of samples, unpacked.
pub(crate) fn goldens(name: &str) -> (Folder, PathBuf) {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/opinfo.tar.xz");
    let folder = Folder::new(name);
    unpack(&archive, &folder.0).unwrap();
    let root = folder.0.join("opinfo");
    (folder, root)
}

/// The operators all of whose samples pass.
pub(crate) fn listed() -> BTreeSet<&'static str> {
    include_str!("../opinfo_pass.txt").lines().collect()
}

fn verdict(root: &Path, id: &str, engine: Engine) -> (Case, Verdict) {
    let case = Case::load(root, id).unwrap().on(engine.device());
    let outcome = run(&case, engine);
    let verdict = if ROUNDED_INSIDE.contains(&id) {
        as_exact(root, id, &outcome)
    } else {
        judge(&case, &outcome)
    };
    (case, verdict)
}

/// Compares with the reference evaluation in f64, to the sample's own tolerance.
fn as_exact(root: &Path, id: &str, outcome: &Outcome) -> Verdict {
    let Outcome::Values(values) = outcome else {
        return Verdict::Wrong(format!("{outcome:?}"));
    };
    let exact = Case::load(root, id).unwrap().in_f64();
    let Outcome::Values(expected) = run(&exact, Engine::Reference) else {
        return Verdict::Wrong("f64 gives nothing".into());
    };
    let widened = values.iter().map(|(k, a)| (k.clone(), a.in_f64()));
    let mut case = exact;
    case.tensors.extend(expected);
    judge(
        &case,
        &Outcome::Values(widened.collect::<BTreeMap<String, Array>>()),
    )
}

fn check(engine: Engine) {
    let (_folder, root) = goldens(match engine {
        Engine::Cpu => "cpu",
        Engine::Plain => "plain",
        Engine::Reference => "reference",
        Engine::Cuda(_) => "cuda",
    });
    let listed = listed();
    let mut passed: BTreeMap<String, bool> = BTreeMap::new();
    let mut tiers: BTreeMap<(String, &str), usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for id in ids(&root).unwrap() {
        let (case, verdict) = verdict(&root, &id, engine);
        let op = id.split('/').next().unwrap().to_string();
        let all = passed.entry(op).or_insert(true);
        *all &= verdict == Verdict::Pass;
        let word = match (&verdict, case.kind) {
            (Verdict::Pass, Kind::Value) => "pass",
            (Verdict::Pass, Kind::Error) => "rejected as they must be",
            (Verdict::Unsupported(_), _) => "unsupported",
            (Verdict::Wrong(_), _) => "wrong",
        };
        *tiers.entry((case.tier.clone(), word)).or_default() += 1;
        if let Verdict::Wrong(why) = verdict {
            wrong.push(format!("{id}: {why}"));
        }
    }
    for ((tier, word), count) in &tiers {
        println!("{engine:?}: {count} {tier} cases {word}");
    }
    let complete: BTreeSet<&str> = passed
        .iter()
        .filter(|(_, all)| **all)
        .map(|(op, _)| op.as_str())
        .collect();
    println!("{engine:?}: {} operators pass every case", complete.len());
    assert!(
        wrong.is_empty(),
        "{engine:?} is wrong on\n{}",
        wrong.join("\n")
    );
    let lost: Vec<&&str> = listed.difference(&complete).collect();
    assert!(lost.is_empty(), "{engine:?} no longer passes {lost:?}");
    let new: Vec<&&str> = complete.difference(&listed).collect();
    assert!(
        new.is_empty(),
        "add to opinfo_pass.txt, which {engine:?} passes: {new:?}"
    );
}

#[test]
fn the_reference_agrees_with_pytorch() {
    check(Engine::Reference);
}

#[test]
fn the_cpu_engine_agrees_with_pytorch() {
    check(Engine::Cpu);
}

#[test]
fn the_cpu_engine_agrees_without_optimisation() {
    check(Engine::Plain);
}

#[test]
fn the_cuda_engine_agrees_with_pytorch() {
    if let Some(device) = crate::gpu::device() {
        check(Engine::Cuda(device));
    }
}

#[test]
fn the_runner_writes_what_the_contract_says() {
    let (folder, root) = goldens("contract");
    let ids = "add/f32_00\ncat/error_00\nlinalg.det/f32_00\n";
    let (list, out) = (folder.0.join("list"), folder.0.join("out"));
    std::fs::write(&list, ids).unwrap();
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_kiln-conformance"))
        .args(["opinfo", "--root"])
        .arg(root.parent().unwrap())
        .arg("--cases")
        .arg(&list)
        .arg("--out")
        .arg(&out)
        .status()
        .unwrap();
    assert!(status.success());
    assert!(out.join("add/f32_00.safetensors").exists());
    let line = |id: &str| std::fs::read_to_string(out.join(format!("{id}.status"))).unwrap();
    assert!(line("cat/error_00").starts_with("error: cat: needs at least one tensor"));
    assert_eq!(
        line("linalg.det/f32_00"),
        "unsupported: the operator linalg.det\n"
    );
}
