//! The plan cache: what compiles anew and what does not. One test, because the counters are the
//! process's.

use kiln::{DType, Tensor, cache_stats};

/// How many plans `f` compiles.
fn compiled(f: impl FnOnce()) -> u64 {
    // Other tests run beside this one and compile too, so this one counts in a process of its own.
    let before = cache_stats().compiled;
    f();
    cache_stats().compiled - before
}

fn program(n: usize, scale: f64) -> Vec<f32> {
    let x = Tensor::full([n, 3], 2.0, DType::F32) + Tensor::from_slice(&vec![1f32; n * 3], [n, 3]);
    let y = (x * scale).relu().sum([1], false);
    y.to_vec().unwrap()
}

#[test]
fn variants() {
    // Re-runs this very test alone in a child process.
    if std::env::var_os("KILN_ALONE").is_none() {
        let me = std::env::current_exe().unwrap();
        let status = std::process::Command::new(me)
            .args(["plan_cache::variants", "--exact", "--quiet"])
            .env("KILN_ALONE", "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    assert_eq!(compiled(|| drop(program(4, 2.0))), 1, "first time");
    assert_eq!(compiled(|| drop(program(4, 2.0))), 0, "the same again");
    assert_eq!(
        compiled(|| assert_eq!(program(4, 3.0), [27.0; 4])),
        1,
        "a number differs"
    );
    assert_eq!(
        compiled(|| assert_eq!(program(4, 5.0), [45.0; 4])),
        0,
        "it is an input now"
    );
    assert_eq!(
        compiled(|| assert_eq!(program(6, 5.0), [45.0; 6])),
        1,
        "the leading dim differs"
    );
    assert_eq!(
        compiled(|| assert_eq!(program(9, 7.0), [63.0; 9])),
        0,
        "it is a symbol now"
    );
    assert_eq!(compiled(|| assert_eq!(program(100, 1.0), [9.0; 100])), 0);
    assert_eq!(
        compiled(|| assert_eq!(program(1, 1.0), [9.0; 1])),
        1,
        "a size of 1 is baked"
    );
    assert_eq!(
        compiled(|| assert_eq!(program(0, 1.0), [0f32; 0])),
        1,
        "a size of 0 is baked"
    );
}
