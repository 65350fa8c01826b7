//! Every sample on every engine: the listed ones pass, and no result is wrong.

use kiln_goldens::samples::{listed, verdicts};
use kiln_goldens::{Case, Engine, Folder, Kind, Outcome, Verdict, ids, run};
use kiln_testkit::sweep::Sweep;
use std::collections::{BTreeMap, BTreeSet};

/// Returns how many samples an engine computes in one program: in a full sweep each alone.
pub fn together() -> usize {
    if Sweep::wanted().is_some() { 1 } else { 32 }
}

fn check(engine: Engine) {
    let folder = Folder::opinfo(match engine {
        Engine::Cpu => "cpu",
        Engine::Plain => "plain",
        Engine::Reference => "reference",
        Engine::Cuda(_) => "cuda",
    });
    let folder = folder.unwrap();
    let listed = listed();
    let mut passed: BTreeMap<String, bool> = BTreeMap::new();
    let mut tiers: BTreeMap<(String, &str), usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    let ids = ids(folder.path()).unwrap();
    let part = Sweep::wanted().filter(|s| matches!(engine, Engine::Cuda(_)) && !s.is_whole());
    let range = part.map_or(0..ids.len(), |s| s.share(ids.len()));
    let together = ids[range].chunks(together());
    let judged = together.flat_map(|ids| verdicts(folder.path(), ids, engine).unwrap());
    for (case, verdict) in judged {
        let op = case.id.split('/').next().unwrap().to_string();
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
            wrong.push(format!("{}: {why}", case.id));
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
    if part.is_some() {
        return;
    }
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
    let folder = Folder::opinfo("contract").unwrap();
    let root = folder.path();
    let ids = "add/f32_00\ncat/error_00\nnn.functional.multi_head_attention_forward/f32_00\n";
    let (list, out) = (root.join("list"), root.join("out"));
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
        line("nn.functional.multi_head_attention_forward/f32_00"),
        "unsupported: dropout, which is random\n"
    );
}

/// The outcome of a call, written as a sample.
fn called(folder: &Folder, op: &str, args: &str, keywords: &str) -> Outcome {
    let sample = format!(
        r#"{{"op": "{op}", "tier": "core", "kind": "value", "args": {args}, "kwargs": {keywords},
            "outputs": {{"t": "out0"}}, "tol": {{}}, "grad": null}}"#
    );
    std::fs::write(folder.path().join("call.json"), sample).unwrap();
    run(&Case::load(folder.path(), "call").unwrap(), Engine::Cpu)
}

#[test]
fn a_range_may_name_its_end() {
    let folder = Folder::opinfo("ranges").unwrap();
    let ints = |args: &str, keywords: &str| match called(&folder, "arange", args, keywords) {
        Outcome::Values(values) => values["out0"].to_i64(),
        other => panic!("{other:?}"),
    };
    assert_eq!(ints("[4]", "{}"), [0, 1, 2, 3]);
    assert_eq!(ints("[]", r#"{"end": 2}"#), [0, 1]);
    assert_eq!(ints("[2]", r#"{"end": 4}"#), [2, 3]);
    assert_eq!(ints("[2]", r#"{"end": 7, "step": 2}"#), [2, 4, 6]);
    assert_eq!(ints("[]", r#"{"start": 1, "end": 3}"#), [1, 2]);
    assert_eq!(ints("[2, 8, 3]", "{}"), [2, 5]);
}

#[test]
fn fractions_of_steps_are_refused() {
    let folder = Folder::opinfo("steps").unwrap();
    for op in ["linspace", "logspace"] {
        for steps in ["2.5", "3.0"] {
            let outcome = called(&folder, op, &format!("[0, 1, {steps}]"), "{}");
            assert!(
                matches!(&outcome, Outcome::Error(e) if e.contains("integer")),
                "{outcome:?}"
            );
        }
        assert!(matches!(
            called(&folder, op, "[0, 1, 3]", "{}"),
            Outcome::Values(_)
        ));
    }
}
