//! The commands for packages, as a user calls them.

use kiln::formats::{read_npy, write_npy};
use kiln::nn::{Forward, Linear};
use kiln::package::{Builder, Package};
use kiln::{DType, Spec, Tensor, Var, compile};
use serde_json::Value;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

fn path_in(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

fn kiln(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(words).output().expect("the command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of the command, which must exit with 0.
fn done(words: &[&str]) -> String {
    let out = kiln(words);
    assert!(
        out.status.success(),
        "kiln {words:?}: {}",
        text(&out.stderr)
    );
    text(&out.stdout)
}

/// A folder with a package of two entries; one of them counts its runs.
fn folder() -> kiln::Result<TempDir> {
    let folder = tempfile::tempdir().expect("a folder");
    let model = Linear::new(3, 2)?;
    let count = Var::new(Tensor::from([0i64]))?;
    let rows = Spec::new(DType::F32, ("batch", 3));
    let scores = compile(rows.clone(), |x| model.call(x))?;
    let counted = compile(rows, |x| {
        count.add_(1)?;
        kiln::Result::Ok((model.call(x).argmax(1), count.get()))
    })?;
    Builder::new()
        .module("", &model)
        .var("count", &count)
        .entry("scores", &scores)
        .inputs(["rows"])
        .entry("counted", &counted)
        .inputs(["rows"])
        .outputs(["classes", "count"])
        .metadata("task", "a test")
        .asset("classes.txt", "a\nb\n")
        .save(path_in(&folder, "model.kiln"))?;
    write_npy(
        path_in(&folder, "x.npy"),
        &Tensor::arange(0, 12, 1)
            .to_dtype(DType::F32)
            .reshape([4, 3]),
    )?;
    Ok(folder)
}

#[test]
fn a_package_is_described() -> kiln::Result<()> {
    let folder = folder()?;
    let model = path_in(&folder, "model.kiln");
    let said = done(&["inspect", &model]);
    for wanted in [
        "task: a test",
        "3 states",
        "weight                                   f32[2, 3]",
        "takes rows         f32[batch, 3]",
        "gives classes      i64[batch]",
        "reads 3 states, writes 1",
        "with batch = 2",
        "assets: classes.txt",
    ] {
        assert!(said.contains(wanted), "{said}, without {wanted}");
    }
    let json: Value = serde_json::from_str(&done(&["inspect", &model, "--json"])).expect("JSON");
    assert_eq!(
        json["entries"][1]["interface"]["outputs"][1]["name"],
        "count"
    );
    std::fs::write(&model, "no package").expect("a file");
    let out = kiln(&["inspect", &model]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("this is not a Kiln package"));
    Ok(())
}

#[test]
fn a_package_is_run_and_goes_on_from_there() -> kiln::Result<()> {
    let folder = folder()?;
    let [model, later, x, y, n] =
        ["model.kiln", "later.kiln", "x.npy", "y.npy", "n.npy"].map(|f| path_in(&folder, f));
    let input = format!("rows={x}");
    done(&["run", &model, "--input", &input, "--output", &y]);
    let weight = Package::open(&model)
        .expect("a package")
        .get("weight")
        .expect("a weight");
    assert_eq!(read_npy(&y)?.shape()?, [4, 2]);
    let count = format!("count={n}");
    let counted = |from: &str| {
        let words = [
            "run", from, "--entry", "counted", "--input", &input, "--output", &count, "--save",
            &later,
        ];
        done(&words);
        read_npy(&n)?.to_vec::<i64>()
    };
    assert_eq!(counted(&model)?, [1]);
    assert_eq!(counted(&later)?, [2]);
    let same = Package::open(&later)
        .expect("a package")
        .get("weight")
        .expect("a weight");
    assert_eq!(weight.to_bytes(), same.to_bytes());
    assert!(done(&["run", &model, "--input", &input]).contains("output = "));
    for (words, code, why) in [
        (vec!["run", &model], 1, "takes 1 inputs"),
        (vec!["run", &model, "--input", "rows"], 2, "NAME=FILE.npy"),
        (
            vec!["run", &model, "--entry", "x", "--input", &input],
            1,
            "no entry `x`",
        ),
    ] {
        let out = kiln(&words);
        assert_eq!(out.status.code(), Some(code), "{words:?}");
        assert!(text(&out.stderr).contains(why), "{}", text(&out.stderr));
    }
    let same = kiln(&["diff", &model, &model]);
    assert!(same.status.success() && same.stdout.is_empty());
    let differ = kiln(&["diff", &model, &later]);
    assert_eq!(differ.status.code(), Some(1));
    assert_eq!(
        text(&differ.stdout),
        "state count: 1 of 1 elements differ, by up to 2.000e0\n"
    );
    Ok(())
}

#[test]
fn a_package_is_printed_as_c() -> kiln::Result<()> {
    let folder = folder()?;
    let (model, generated) = (
        path_in(&folder, "model.kiln"),
        path_in(&folder, "generated"),
    );
    let said = done(&["export-c", &model, &generated, "--size", "batch=3"]);
    assert!(said.contains("model.h"), "{said}");
    let header =
        std::fs::read_to_string(folder.path().join("generated/model.h")).expect("a header");
    // The entry that counts its runs is left out.
    assert!(header.contains("int model_scores(const float *rows, float *output, void *memory);"));
    assert!(header.contains("rows f32[3, 3] -> output f32[3, 2]"));
    assert!(!header.contains("counted"));
    let words = [
        "export-c",
        &model,
        &generated,
        "--weights",
        "file",
        "--json",
    ];
    let json: Value = serde_json::from_str(&done(&words)).expect("JSON");
    let names = json["files"].as_array().into_iter().flatten();
    assert!(names.map(|f| &f["name"]).any(|n| n == "model_weights.bin"));
    for (words, code, why) in [
        (["--entry", "missing"], 1, "no entry `missing`"),
        (["--size", "batch"], 2, "a size is NAME=N"),
    ] {
        let out = kiln(&[&["export-c", &model, &generated], &words[..]].concat());
        assert_eq!(out.status.code(), Some(code), "{words:?}");
        assert!(text(&out.stderr).contains(why), "{}", text(&out.stderr));
    }
    // If that entry is named, its caller holds the counter.
    done(&["export-c", &model, &generated, "--entry", "counted"]);
    let header =
        std::fs::read_to_string(folder.path().join("generated/model.h")).expect("a header");
    assert!(header.contains("void model_begin(model_state *state);"));
    Ok(())
}

#[test]
fn kernels_of_a_package_are_verified() -> kiln::Result<()> {
    let folder = folder()?;
    let model = path_in(&folder, "model.kiln");
    let said = done(&["verify", &model]);
    for wanted in [
        "scores (batch = 1): ",
        "counted (batch = 1): ",
        "all within",
    ] {
        assert!(said.contains(wanted), "{said}, without {wanted}");
    }
    let x = format!("rows={}", path_in(&folder, "x.npy"));
    let words = [
        "verify", &model, "--entry", "scores", "--size", "batch=4", "--input", &x, "--json",
    ];
    let json: Value = serde_json::from_str(&done(&words)).expect("JSON");
    assert_eq!(json[0]["entry"], "scores (batch = 4)");
    assert_eq!(
        (&json[0]["right"], &json[0]["of"]),
        (&true.into(), &"kernels".into())
    );
    assert_eq!(json[0]["checks"][0]["right"], true);
    let out = kiln(&["verify", &model, "--size", "length=4"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("no entry leaves a size `length` open"));
    // A program of another graph has wrong results.
    let package = Package::open(&model).expect("a package");
    let mut contents = package.contents().expect("contents");
    let graph = &mut contents.entries[0].graph;
    let other = graph.replacen("= add ", "= sub ", 1);
    assert_ne!(*graph, other);
    *graph = other;
    contents
        .save(path_in(&folder, "other.kiln"))
        .expect("a package");
    let out = kiln(&[
        "verify",
        &path_in(&folder, "other.kiln"),
        "--entry",
        "scores",
    ]);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("1 outside their tolerance"));
    Ok(())
}

#[test]
fn entries_of_a_package_are_measured_and_tuned() -> kiln::Result<()> {
    let folder = folder()?;
    let [model, tuned, store] = ["model.kiln", "tuned.kiln", "store"].map(|f| path_in(&folder, f));
    let words = [
        "bench", &model, "--time", "1", "--size", "batch=4", "--json",
    ];
    let json: Value = serde_json::from_str(&done(&words)).expect("JSON");
    assert_eq!(json[1]["entry"], "counted (batch = 4)");
    assert!(json[1]["times"][0].as_f64() > Some(0.0));
    let said = done(&["bench", &model, "--time", "1", "--entry", "scores"]);
    assert!(said.contains("scores (batch = 1)") && !said.contains("counted"));
    let out = kiln(&["bench", &model, "matmul:8x8x8"]);
    assert_eq!(out.status.code(), Some(2));
    let words = [
        "tune", &model, "--store", &store, "--output", &tuned, "--budget", "1",
    ];
    let said = done(&words);
    assert!(said.contains("scores batch=1: "), "{said}");
    // The results are the same, and the counter goes on.
    let input = format!("rows={}", path_in(&folder, "x.npy"));
    let ran = |model: &str| done(&["run", model, "--entry", "scores", "--input", &input]);
    assert_eq!(ran(&model), ran(&tuned));
    assert!(done(&["verify", &tuned]).contains("all within"));
    // The program is this machine's, next to the one for any machine.
    assert!(done(&["inspect", &tuned]).contains(", which this is\n"));
    assert!(done(&["diff", &model, &model]).is_empty());
    // The reader of the output may close it: the file is written all the same.
    let unread = path_in(&folder, "unread.kiln");
    let words = [
        "tune", &model, "--store", &store, "--output", &unread, "--budget", "1",
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    let mut child = command
        .args(words)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    assert!(child.wait().expect("it ends").success());
    assert_eq!(ran(&model), ran(&unread));
    Ok(())
}
