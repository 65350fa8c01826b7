//! Sources compiled by the real NVRTC.

use kiln_runtime::cuda::{Code, Nvrtc};

/// NVRTC. If there is none, prints that the test is skipped.
pub fn nvrtc() -> Option<&'static Nvrtc> {
    let found = Nvrtc::get();
    if let Err(e) = &found {
        let first = e.to_string();
        eprintln!("skipped: {}", first.lines().next().unwrap_or_default());
    }
    found.ok()
}

#[test]
fn compiles_ptx_and_machine_code_and_shows_the_line_of_an_error() {
    let Some(nvrtc) = nvrtc() else { return };
    let source = format!(
        "{}\nextern \"C\" __global__ void f(float* x) {{ x[threadIdx.x] *= 2.0f; }}\n",
        kiln_plan::cuda::PRELUDE
    );
    let ptx = nvrtc.compile(&source, Code::Ptx(80)).unwrap();
    let text = String::from_utf8(ptx.image).unwrap();
    assert!(
        text.contains(".target sm_80") && text.contains(".entry f("),
        "{text}"
    );
    let cubin = nvrtc.compile(&source, Code::Cubin(90)).unwrap();
    assert!(cubin.image.starts_with(b"\x7fELF"));
    assert!(cubin.log.contains("registers"), "{}", cubin.log);

    let wrong = source.replace("*= 2.0f", "*= nonsense");
    let error = nvrtc
        .compile(&wrong, Code::Ptx(80))
        .unwrap_err()
        .to_string();
    assert!(error.contains("nonsense\" is undefined"), "{error}");
    assert!(
        error.contains("in: extern \"C\" __global__ void f"),
        "{error}"
    );
}
