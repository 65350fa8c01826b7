//! Packages with precompiled kernels, on GPUs that accept them and on others, with and without a compiler.

use crate::archive::{self, Member};
use crate::cuda::{device, network};
use crate::damage::{Random, given, structural};
use crate::support::{batch, buffer};
use kiln_export::Builder;
use kiln_nn::{Forward, Module};
use kiln_package::{Buffer, Code, Options, Package};
use kiln_runtime::cuda;
use kiln_tensor::{DType, Device, Spec, Tensor, compile};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Returns a builder of a package with the kernels of a small network, and the network's result for three rows.
fn builder(gpu: Device) -> (Builder, Vec<u8>) {
    let network = network(3, gpu);
    network.eval();
    let rows = Spec::new(DType::F32, ("batch", 3)).on(gpu);
    let forward = compile(rows, |x: Tensor| network.call(&x).softmax(1)).unwrap();
    let out = forward.run(batch(1, 3).0.to(gpu)).unwrap();
    let builder = Builder::new().module("", &network);
    (
        builder.entry("forward", &forward).inputs(["rows"]),
        out.to_bytes().unwrap(),
    )
}

fn run(package: &Package) -> Result<Vec<u8>, kiln_package::Error> {
    let given: Buffer = buffer(&batch(1, 3).0);
    let out = package.entry("forward")?.run([("rows", given)])?;
    Ok(out[0].to_host().unwrap().to_bytes().unwrap())
}

const CHILD: &str = "KILN_TEST_PACKAGE";

/// Runs as a child process of another test: it runs a package on its GPU and prints the outcome.
#[test]
fn what_a_child_does() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let ran = Options::new().gpu(0).open(path).and_then(|p| run(&p));
    match ran {
        Ok(bytes) => println!("found {bytes:?} after {} units", cuda::compilations()),
        Err(e) => println!("refused {e}"),
    }
}

/// Returns the output of a child, on a GPU of this compute capability, with this machine's compiler or none.
fn child(package: &Path, capability: u32, compiler: bool) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "compiled::what_a_child_does", "--nocapture"]);
    child.env(CHILD, package).env("KILN_CACHE_DIR", "");
    child.env("KILN_CUDA_DRIVER", kiln_fake_cuda::library());
    child.env("KILN_FAKE_CUDA_CAPABILITY", capability.to_string());
    if !compiler {
        child.env("KILN_NVRTC", "/nowhere/libnvrtc.so");
        for place in [
            "PATH",
            "HOME",
            "VIRTUAL_ENV",
            "CONDA_PREFIX",
            "CUDA_HOME",
            "CUDA_PATH",
        ] {
            child.env_remove(place);
        }
    }
    let out = child.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let line = said.lines().find_map(|l| {
        let at = l.find("found ").or_else(|| l.find("refused "))?;
        Some(said[said.find(l)? + at..].to_string())
    });
    line.unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&out.stderr)))
}

#[test]
fn kernels_that_were_compiled_run_where_their_architecture_is() {
    let Some(gpu) = device() else { return };
    if std::env::var_os(CHILD).is_some() || !gpu.name().starts_with("Kiln GPU emulator") {
        return;
    }
    let (builder, wanted) = builder(gpu);
    let folder = tempfile::tempdir().unwrap();
    let save = |name: &str, builder: Builder| {
        let path = folder.path().join(name);
        builder.save(&path).unwrap();
        path
    };
    let own = save("own.kiln", builder);
    assert_eq!(
        Package::open(&own)
            .unwrap()
            .compiled_for()
            .into_iter()
            .collect::<Vec<_>>(),
        ["compute_90a"]
    );
    let found = format!("found {wanted:?} after 0 units");
    // No compiler is needed, and none is called.
    assert!(child(&own, 90, false).starts_with(&found));
    assert!(child(&own, 90, true).starts_with(&found));
    // Other GPUs do not accept it: they compile the source, or report the missing compiler.
    for capability in [80, 100] {
        let refused = child(&own, capability, false);
        let (major, minor) = (capability / 10, capability % 10);
        let why = format!(
            "has compute capability {major}.{minor}, there are compiled kernels for compute_90a"
        );
        let without = refused.contains(&why) && refused.contains("NVRTC");
        let elsewhere = refused.starts_with("found") && !refused.contains("after 0");
        assert!(without || elsewhere, "{refused}");
        let compiled = child(&own, capability, true);
        assert!(
            compiled.starts_with(&format!("found {wanted:?}")),
            "{compiled}"
        );
        assert!(!compiled.contains("after 0 units"), "{compiled}");
    }
    // PTX of an older GPU runs on all newer ones. Code that a driver refuses (here machine code without PTX) is
    // skipped.
    let (builder, _) = self::builder(gpu);
    let codes = [Code::Cubin(90), Code::Portable(80)];
    let wide = save(
        "wide.kiln",
        codes.into_iter().fold(builder, Builder::compiled_kernels),
    );
    for capability in [80, 90, 120] {
        assert!(
            child(&wide, capability, false).starts_with(&found),
            "{capability}"
        );
    }
    let older = child(&wide, 75, false);
    assert!(older.contains("need 8.0 or newer"), "{older}");
    // A package that is saved again, with its state, keeps them.
    let package = Options::new().gpu(0).open(&wide).unwrap();
    let again = folder.path().join("again.kiln");
    package.save(&again).unwrap();
    assert!(child(&again, 120, false).starts_with(&found));
    let other = folder.path().join("other.kiln");
    package.contents().unwrap().save(&other).unwrap();
    assert!(child(&other, 80, false).starts_with(&found));
}

#[test]
fn machine_code_of_a_package_is_taken_before_its_ptx() {
    let Some(gpu) = device() else { return };
    if !gpu.name().starts_with("Kiln GPU emulator") {
        return;
    }
    const KEEPS_PTX: &str = "KILN_CUDA_PTX";
    let runs = std::env::var_os(KEEPS_PTX).is_some_and(|v| v == "1");
    if !runs {
        // The test runs again in its own process, with machine code that the emulated GPU runs.
        let test = "compiled::machine_code_of_a_package_is_taken_before_its_ptx";
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", test, "--nocapture"]);
        let out = again.env(KEEPS_PTX, "1").output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        let why = String::from_utf8_lossy(&out.stderr);
        assert!(
            out.status.success() && said.contains("1 passed"),
            "{said}{why}"
        );
    }
    let (builder, wanted) = builder(gpu);
    let bytes = builder
        .compiled_kernels(Code::Cubin(90))
        .to_bytes()
        .unwrap();
    let other = |b: &mut Vec<u8>| replaced(b, ".target sm_90a", ".target sm_80");
    let wrong = changed(&archive::read(&bytes), "cuda/compute_90a-0.ptx", other);
    let folder = tempfile::tempdir().unwrap();
    let on_90 = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        child(&path, 90, false)
    };
    let found = format!("found {wanted:?} after 0 units");
    assert!(on_90("right.kiln", &bytes).starts_with(&found));
    // PTX is not even read if the driver accepts the machine code.
    let said = on_90("wrong.kiln", &wrong);
    match runs {
        true => assert!(said.starts_with(&found), "{said}"),
        false => assert!(said.contains("compute_90a are for sm_80"), "{said}"),
    }
}

/// Returns the package with a member changed and checksums recomputed.
fn changed(members: &[Member], name: &str, change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut members = members.to_vec();
    let found = members.iter_mut().find(|m| m.name == name).unwrap();
    change(&mut found.contents);
    archive::written(&archive::summed(members))
}

fn replaced(bytes: &mut Vec<u8>, from: &str, to: &str) {
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert!(text.contains(from), "{from}");
    *bytes = text.replace(from, to).into_bytes();
}

#[test]
fn compiled_kernels_that_are_others_are_refused() {
    let Some(gpu) = device() else { return };
    let (builder, wanted) = builder(gpu);
    let bytes = builder.to_bytes().unwrap();
    let members = archive::read(&bytes);
    let ptx = "cuda/compute_90a-0.ptx";
    let ran = |bytes: Vec<u8>| {
        let package = Options::new().gpu(0).open_bytes(&bytes)?;
        run(&package)
    };
    assert_eq!(ran(bytes.clone()).unwrap(), wanted);
    let refused = |change: &dyn Fn(&mut Vec<u8>), why: &str| {
        let error = ran(changed(&members, ptx, change)).unwrap_err().to_string();
        assert!(error.contains(why), "{why}: {error}");
    };
    refused(
        &|b| replaced(b, ".target sm_90a", ".target sm_80"),
        "are for sm_80",
    );
    refused(
        &|b| replaced(b, ".target sm_90a", "// none"),
        "are for nothing",
    );
    refused(
        &|b| {
            b.pop();
        },
        "are not text",
    );
    refused(&|b| b.extend(*b"\0"), "are not text");
    refused(&|b| b[40] = 0, "are not text");
    refused(&|b| replaced(b, ".entry kiln_", ".entry other_"), "lack");
    refused(
        &|b| {
            replaced(
                b,
                ".param .u64 kiln_",
                ".param .u64 more, .param .u64 kiln_",
            )
        },
        "called in another way",
    );
    // Machine code is checked before the driver gets it.
    let with_code = self::builder(gpu).0.compiled_kernels(Code::Cubin(90));
    let machine_code = archive::read(&with_code.to_bytes().unwrap());
    let cubin = "cuda/sm_90a-0.cubin";
    let changes: [fn(&mut Vec<u8>); 2] = [|b| b.truncate(b.len() - 1), |b| b[0] = b'.'];
    for (change, why) in changes.into_iter().zip(["are cut off", "not machine code"]) {
        let error = ran(changed(&machine_code, cubin, change)).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    let manifest = |change: &dyn Fn(&mut Value)| {
        let change = |bytes: &mut Vec<u8>| {
            let mut json: Value = serde_json::from_slice(bytes).unwrap();
            change(&mut json["cuda"][0]);
            *bytes = serde_json::to_vec(&json).unwrap();
        };
        ran(changed(&members, "manifest.json", change))
    };
    // Kernels of other sources or flags do not match: the sources are compiled.
    for code in ["compute_80", "sm_80", "sm_90a"] {
        assert_eq!(
            manifest(&|c| c["code"] = code.into()).unwrap(),
            wanted,
            "{code}"
        );
    }
    let other = |c: &mut Value| c["kernels"][0] = "0".repeat(32).into();
    assert_eq!(manifest(&other).unwrap(), wanted);
    for wrong in ["sm_90", "ptx", ""] {
        let error = manifest(&|c| c["code"] = wrong.into())
            .unwrap_err()
            .to_string();
        assert!(error.contains("no code for GPUs is called"), "{error}");
    }
    let error = manifest(&|c| c["kernels"][0] = "x".into())
        .unwrap_err()
        .to_string();
    assert!(error.contains("no kernel is called"), "{error}");
}

#[test]
fn damage_to_compiled_kernels_never_panics() {
    let Some(gpu) = device() else { return };
    let bytes = builder(gpu).0.to_bytes().unwrap();
    let members = archive::read(&bytes);
    let mut r = Random(given("KILN_PACKAGE_SEED", 7) | 1);
    let (mut refused, mut opened) = (0, 0);
    for _ in 0..given("KILN_PACKAGE_CUDA_MUTANTS", 150) {
        let mut members = members.clone();
        for _ in 0..1 + r.below(3) {
            structural(&mut members, &mut r);
        }
        // A damaged package is not run, because a failed emulated device is lost for other tests.
        let bytes = archive::written(&archive::summed(members));
        let package = Options::new().gpu(0).open_bytes(&bytes);
        match package.and_then(|p| p.entry("forward").map(drop)) {
            Ok(()) => opened += 1,
            Err(kiln_package::Error::Run {
                error: e @ kiln_package::RuntimeError::Internal(_),
                ..
            }) => panic!("{e}"),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0 && opened > 0, "{refused} {opened}");
}
