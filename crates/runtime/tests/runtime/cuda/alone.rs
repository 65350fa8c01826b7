//! Tests that need a process of their own, for the environment or for figures of the whole device.

use super::build::*;
use kiln_runtime::cuda::{Device, Nvrtc, cache_hits, compilations};
use kiln_runtime::{Buffer, Error, Executable};
use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs one of these tests by itself.
pub fn alone(test: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "--include-ignored",
        "--nocapture",
        &format!("cuda::{test}"),
    ]);
    command.envs(environment.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{test}: {text}"
    );
    output
}

#[test]
fn a_missing_driver_is_an_error_that_lists_where_it_was_looked_for() {
    alone(
        "alone::without_a_driver",
        &[("KILN_CUDA_DRIVER", "/nowhere/libcuda.so.1")],
    );
}

#[test]
#[ignore = "run by another test"]
fn without_a_driver() {
    let error = Device::get(0).unwrap_err().to_string();
    assert!(error.contains("the CUDA driver was not found"), "{error}");
    assert!(
        error.contains("/nowhere/libcuda.so.1: no such file"),
        "{error}"
    );
    assert_eq!(kiln_runtime::cuda::count().unwrap_err().to_string(), error);
}

/// An environment that names no CUDA toolkit and in which no Python is found.
const BARE: [(&str, &str); 5] = [
    ("PATH", "/nowhere"),
    ("CUDA_HOME", ""),
    ("CUDA_PATH", ""),
    ("VIRTUAL_ENV", ""),
    ("CONDA_PREFIX", ""),
];

#[test]
fn a_missing_compiler_is_an_error_that_lists_where_it_was_looked_for() {
    let library = ("KILN_NVRTC", "/nowhere/libnvrtc.so");
    alone("alone::without_nvrtc", &[&BARE[..], &[library]].concat());
}

#[test]
#[ignore = "run by another test"]
fn without_nvrtc() {
    match Nvrtc::get() {
        Err(error) => {
            let error = error.to_string();
            let missing = "/nowhere/libnvrtc.so: no such file";
            assert!(error.contains(missing), "{error}");
            assert!(error.contains("pip install nvidia-cuda-nvrtc"), "{error}");
        }
        // It was found in a usual place.
        Ok(nvrtc) => assert!(!nvrtc.path().starts_with("/nowhere")),
    }
}

#[test]
fn a_library_without_a_function_is_an_error_that_names_it() {
    let library = "libm.so.6";
    let named = [("KILN_CUDA_DRIVER", library), ("KILN_NVRTC", library)];
    alone("alone::lacking", &[&BARE[..], &named].concat());
}

#[test]
#[ignore = "run by another test"]
fn lacking() {
    let error = Device::get(0).unwrap_err().to_string();
    let missing = "libm.so.6: it has no cuCtxPopCurrent_v2; it may be older than CUDA 12";
    assert!(error.contains(missing), "{error}");
    match Nvrtc::get() {
        Err(error) => {
            let error = error.to_string();
            let missing = "libm.so.6: it has no nvrtcCompileProgram; it may be older than CUDA 12";
            assert!(error.contains(missing), "{error}");
        }
        // It was found in a usual place.
        Ok(nvrtc) => assert_ne!(nvrtc.path(), "libm.so.6"),
    }
}

#[test]
fn an_nvrtc_that_is_named_is_the_one_that_the_loader_gives_or_an_error() {
    let file = Nvrtc::get().map(|nvrtc| nvrtc.path());
    let Some(file) = file.ok().filter(|file| file.is_absolute()) else {
        return eprintln!("skipped: no NVRTC");
    };
    let folder = std::env::temp_dir().join(format!("kiln-loader-{}", std::process::id()));
    let (toolkit, other) = (folder.join("toolkit"), folder.join("libnvrtc.so"));
    std::fs::create_dir_all(&toolkit).unwrap();
    std::os::unix::fs::symlink(file.parent().unwrap(), toolkit.join("lib64")).unwrap();
    let run = |test: &str, nvrtc: &str| {
        let paths = [("FILE", file), ("OTHER", &other), ("CUDA_HOME", &toolkit)];
        let mut environment = BARE.to_vec();
        environment.extend(paths.map(|(name, path)| (name, path.to_str().unwrap())));
        environment.push(("LD_LIBRARY_PATH", folder.to_str().unwrap()));
        environment.push(("KILN_NVRTC", nvrtc));
        alone(test, &environment);
    };
    std::fs::copy(file, &other).unwrap();
    run("alone::named_in_vain", file.to_str().unwrap());
    run(
        "alone::named_in_vain",
        file.parent().unwrap().to_str().unwrap(),
    );
    run("alone::found_elsewhere", "");
    std::fs::remove_file(&other).unwrap();
    std::os::unix::fs::symlink(file, &other).unwrap();
    run("alone::named_and_linked", file.to_str().unwrap());
    std::fs::remove_dir_all(folder).unwrap();
}

fn path_in(variable: &str) -> PathBuf {
    std::env::var_os(variable).unwrap().into()
}

#[test]
#[ignore = "run by another test"]
fn named_in_vain() {
    let error = Nvrtc::get().err().unwrap().to_string();
    let [file, other] = ["FILE", "OTHER"].map(|name| path_in(name).display().to_string());
    let both = format!("is to be {file}, but the system's loader gives {other} as libnvrtc.so");
    assert!(error.contains(&both), "{error}");
    assert!(error.ends_with("or unset KILN_NVRTC"), "{error}");
}

#[test]
#[ignore = "run by another test"]
fn found_elsewhere() {
    let nvrtc = Nvrtc::get().unwrap();
    assert_eq!(nvrtc.path(), path_in("OTHER"));
    assert!(!nvrtc.architectures().is_empty());
}

#[test]
#[ignore = "run by another test"]
fn named_and_linked() {
    assert_eq!(Nvrtc::get().unwrap().path(), path_in("FILE"));
}

#[test]
fn a_warm_start_compiles_nothing_and_needs_no_compiler() {
    if device().is_none() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("kiln-warm-{}", std::process::id()));
    let cache = folder.to_str().unwrap();
    // PTX, then machine code: neither is read in place of the other.
    for (ptx, kept) in [("0", "cuda"), ("1", "cuda-ptx")] {
        let there = [("KILN_CACHE_DIR", cache), ("KILN_CUDA_PTX", ptx)];
        let without = [("KILN_NVRTC", "/nowhere"), ("PATH", "/nowhere")];
        alone("alone::cold", &there);
        alone("alone::warm", &there);
        alone("alone::warm", &[there, without].concat());
        // Damaged entries are compiled again.
        let entries = std::fs::read_dir(folder.join(kept)).unwrap();
        let paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
        for path in &paths {
            let bytes = std::fs::read(path).unwrap();
            std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        }
        alone("alone::cold", &there);
        alone("alone::warm", &there);
        if ptx == "1" {
            let code = paths
                .iter()
                .filter(|p| p.extension().is_some_and(|e| e == "code"));
            let code: Vec<Vec<u8>> = code.map(|p| std::fs::read(p).unwrap()).collect();
            // The code follows a checksum and the compiler's version.
            let all = code.iter().all(|c| c[24..].starts_with(b"\x7fELF"));
            assert!(code.len() >= 2 && all, "{paths:?}");
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn machine_code_runs_as_its_ptx_does() {
    if device().is_none() {
        return;
    }
    for test in [
        "chains_run_at_any_size_and_again_as_graphs",
        "an_index_out_of_range_is_named_and_leaves_donated_memory_alone",
        "kernels_of_one_name_and_other_text_are_not_taken_for_each_other",
    ] {
        alone(&format!("run::{test}"), &[("KILN_CUDA_PTX", "1")]);
    }
}

fn run_chain() {
    kiln_runtime::cuda::set_driver(kiln_fake_cuda::library());
    let device = Device::get(0).unwrap();
    let exe = Executable::on_gpu(chain(), &device).unwrap();
    let scale = Buffer::from_slice(&[1.0f32], &[]).unwrap();
    let out = exe
        .run_shared(&[numbers(&device, &[1.0, 2.0]).unwrap(), scale])
        .unwrap();
    assert_eq!(out[0].to_vec::<f32>().unwrap(), [9.0, 25.0]);
}

#[test]
#[ignore = "run by another test"]
fn cold() {
    run_chain();
    assert!(compilations() >= 2);
    let compiled = compilations();
    run_chain();
    assert_eq!(
        compilations(),
        compiled,
        "a loaded kernel is not compiled again"
    );
}

#[test]
#[ignore = "run by another test"]
fn warm() {
    run_chain();
    assert_eq!(compilations(), 0);
    assert!(cache_hits() >= 2);
}

#[test]
fn a_full_device_is_an_error_and_names_what_holds_it() {
    if device().is_some() {
        alone("alone::full", &[]);
    }
}

#[test]
#[ignore = "run by another test"]
fn full() {
    let device = device().unwrap();
    let exe = Executable::on_gpu(chain(), &device).unwrap();
    let inputs = [
        numbers(&device, &[1.0; 4096]).unwrap(),
        Buffer::from_slice(&[1.0f32], &[])
            .unwrap()
            .to_gpu(&device)
            .unwrap(),
    ];
    let held = exe.run_shared(&inputs).unwrap();
    let before = device.memory();
    // The lane's record, inputs, prepared results, the result.
    assert_eq!(before.allocated, 24 + 4 * 4096 + 4 + 4 + 4 * 4096);
    assert!(before.peak >= before.allocated + 2 * 4 * 4096 && before.reserved >= before.allocated);
    device.set_limit(Some(before.allocated + 20_000));
    let error = exe.run_shared(&inputs).unwrap_err();
    let Error::OutOfMemory {
        requested,
        ref holders,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(requested, 2 * 4 * 4096);
    assert_eq!(holders[0].1, 2 * 4 * 4096); // both results: the second run has its own by now
    assert!(
        error
            .to_string()
            .contains("results of the program that ends in square"),
        "{error}"
    );
    assert_eq!(
        device.memory().allocated,
        before.allocated,
        "a failed run holds nothing"
    );
    device.set_limit(None);
    assert!(exe.run_shared(&inputs).is_ok());
    drop((held, inputs, exe));
    device.empty_cache().unwrap();
    assert_eq!(device.memory().allocated, 24);
    device.reset_peak();
    assert_eq!(device.memory().peak, 24);
    assert!(device.free_memory().unwrap() <= device.total_memory());
    assert!(!device.name().is_empty() && device.capability().0 > 0);
    let error = Device::get(99).unwrap_err().to_string();
    assert!(
        error.starts_with("there is no cuda:99: the driver shows"),
        "{error}"
    );
}

#[test]
fn work_is_in_order_however_early_or_late_the_device_does_it() {
    if device().is_none() {
        return;
    }
    for seed in ["1", "2", "3"] {
        for test in [
            "chains_run_at_any_size_and_again_as_graphs",
            "threads_share_a_device",
            "an_index_out_of_range_is_named_and_leaves_donated_memory_alone",
        ] {
            alone(&format!("run::{test}"), &[("KILN_FAKE_CUDA_SEED", seed)]);
        }
    }
}

#[test]
fn several_devices_work_in_one_process() {
    if device().is_some() {
        alone("alone::two", &[("KILN_FAKE_CUDA_DEVICES", "2")]);
    }
}

#[test]
#[ignore = "run by another test"]
fn two() {
    let first = device().unwrap();
    let Ok(second) = Device::get(1) else {
        return eprintln!("skipped: there is one GPU alone");
    };
    let x = numbers(&first, &[1.0, 2.0]).unwrap();
    let scale = Buffer::from_slice(&[1.0f32], &[]).unwrap();
    let on = |device| Executable::on_gpu(chain(), device).unwrap();
    let y = on(&first)
        .run_shared(&[x.clone(), scale.clone()])
        .unwrap()
        .remove(0);
    // Copied from one device to the other while the first may still compute it.
    let there = y.to_gpu(&second).unwrap();
    assert_eq!(there.gpu().unwrap().ordinal(), 1);
    if second.is_emulated() {
        assert_eq!(
            kiln_fake_cuda::counters().peer_copies,
            1,
            "not through the host"
        );
    }
    let z = on(&second)
        .run_shared(&[there, scale.clone()])
        .unwrap()
        .remove(0);
    assert_eq!(y.to_vec::<f32>().unwrap(), [9.0, 25.0]);
    assert_eq!(z.to_vec::<f32>().unwrap(), [361.0, 2601.0]);
    let error = on(&second).run_shared(&[x, scale]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "input 0 is on cuda:0, the plan runs on cuda:1"
    );
    assert!(first.memory().allocated > 0 && second.memory().allocated > 0);
    // Freeing memory of one leaves the other one current.
    second.activate().unwrap();
    let current = kiln_fake_cuda::current_context();
    drop(y);
    assert_eq!(kiln_fake_cuda::current_context(), current);
    // Memory that the other one copies from is freed once it has, by its own device.
    let free = || {
        first.empty_cache().unwrap();
        first.free_memory().unwrap()
    };
    let before = free();
    let there = numbers(&first, &[3.0; 1000])
        .and_then(|x| x.to_gpu(&second))
        .unwrap();
    let after = free();
    assert!(after == before || !second.is_emulated(), "{after} {before}");
    assert_eq!(there.to_vec::<f32>().unwrap(), [3.0; 1000]);
}

#[test]
fn kernels_are_unloaded_with_their_last_plan() {
    if device().is_some() {
        let folder = std::env::temp_dir().join(format!("kiln-unload-{}", std::process::id()));
        let cache = folder.to_str().unwrap();
        alone("alone::unloaded", &[("KILN_CACHE_DIR", cache)]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
#[ignore = "run by another test"]
fn unloaded() {
    let device = device().unwrap();
    let load = || Executable::on_gpu(chain(), &device).unwrap();
    let scale = Buffer::from_slice(&[1.0f32], &[]).unwrap();
    let run = |exe: &Executable| {
        let x = numbers(&device, &[1.0, 2.0]).unwrap();
        exe.run_shared(&[x, scale.clone()]).unwrap().remove(0)
    };
    let (first, second) = (load(), load());
    let loaded = cache_hits();
    drop(first);
    // Kernels of the other plan are still loaded.
    let third = load();
    assert_eq!(cache_hits(), loaded);
    // Work in progress is not waited for: kernels are unloaded when the device is synchronised.
    let outs = [run(&second), run(&third)];
    if !device.is_emulated() {
        return;
    }
    let modules = || kiln_fake_cuda::counters().modules;
    let held = modules();
    drop((second, third));
    assert_eq!(modules(), held);
    for out in outs {
        assert_eq!(out.to_vec::<f32>().unwrap(), [9.0, 25.0]);
    }
    device.synchronize().unwrap();
    assert!(modules() < held, "{held}");
    assert_eq!(run(&load()).to_vec::<f32>().unwrap(), [9.0, 25.0]);
    assert!(cache_hits() > loaded);
    // Plans that come and go without a synchronisation do not pile up kernels.
    (0..50).for_each(|_| drop(run(&load())));
    assert!(modules() < 50, "{}", modules());
    assert_eq!(kiln_fake_cuda::counters().waiting_unloads, 0);
}

#[test]
fn a_limit_holds_for_what_the_pool_keeps() {
    if device().is_some() {
        alone("alone::polite", &[]);
    }
}

#[test]
#[ignore = "run by another test"]
fn polite() {
    let device = device().unwrap();
    let exe = Executable::on_gpu(chain(), &device).unwrap();
    let scale = Buffer::from_slice(&[1.0f32], &[]).unwrap();
    let scale = scale.to_gpu(&device).unwrap();
    let run = |n: usize| {
        let x = numbers(&device, &vec![1.0; n]).unwrap();
        exe.run_shared(&[x, scale.clone()]).unwrap();
    };
    // Freed memory is held until the device has reached the point at which it is freed.
    (0..8).for_each(|_| run(60_000));
    assert!(device.memory().reserved > 1 << 20);
    device.set_limit(Some(1 << 20));
    for n in [60_000, 10, 50_000, 60_000, 55_000, 60_000] {
        run(n);
        let reserved = device.memory().reserved;
        assert!(reserved <= 1 << 20, "{reserved} after {n}");
    }
}

#[test]
fn a_device_that_the_compiler_does_not_know_gets_ptx() {
    if device().is_some() {
        let folder = std::env::temp_dir().join(format!("kiln-newer-{}", std::process::id()));
        let cache = folder.to_str().unwrap();
        let newer = [
            ("KILN_CACHE_DIR", cache),
            ("KILN_FAKE_CUDA_CAPABILITY", "990"),
        ];
        alone("alone::cold", &newer);
        alone("alone::warm", &newer);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
