//! The memory that cached plans take, against what the cache says of it.

use kiln_tensor::{DType, Result, Tensor, cache_stats, cat};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

/// Counts the bytes that are held in blocks below a MiB; tensors of the test's programs are small beside its plans.
struct Counting;

static HELD: AtomicIsize = AtomicIsize::new(0);

fn count(layout: Layout, sign: isize) {
    if layout.size() < 1 << 20 {
        HELD.fetch_add(sign * layout.size() as isize, Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout, 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout, -1);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The bytes that a program's plan holds, and the cache's estimate.
fn held(program: impl Fn() -> Result<Tensor>) -> Result<(f64, f64)> {
    let run = || -> Result<(isize, usize)> {
        program()?.realize()?;
        Ok((HELD.load(Relaxed), cache_stats().bytes))
    };
    let (before, estimated) = (HELD.load(Relaxed), cache_stats().bytes);
    let (first, after) = run()?;
    // Another run leaves as many nodes behind for later, and compiles nothing.
    let (second, same) = run()?;
    assert_eq!(after, same);
    let nodes = second - first;
    Ok(((first - before - nodes) as f64, (after - estimated) as f64))
}

#[test]
fn the_cache_counts_what_plans_hold() -> Result<()> {
    let x = Tensor::rand([16, 32], DType::F32);
    let w = Tensor::rand([32, 32], DType::F32);
    x.realize()?;
    w.realize()?;
    // Memory that the process allocates once.
    let warm = |n: i64| -> Result<Tensor> {
        Ok((0..n).fold(x.clone(), |y, i| (y.matmul(&w) + i).sin().cumsum(0)))
    };
    warm(3)?.realize()?;
    let pointwise = || Ok((0..100).fold(x.clone(), |y, i| (y * 1.5 + i).sin()));
    let reduced = || Ok((0..60).fold(x.clone(), |y, _| (&y - y.sum(1).unsqueeze(1)).cumsum(0)));
    let products = || Ok((0..50).fold(x.clone(), |y, _| y.matmul(&w).relu()));
    let joined = || {
        let parts: Vec<Tensor> = (0..60).map(|i| &x + i).collect();
        Ok(cat(&parts, 0))
    };
    for (what, (holds, estimate)) in [
        ("pointwise", held(pointwise)?),
        ("reduced", held(reduced)?),
        ("products", held(products)?),
        ("joined", held(joined)?),
    ] {
        let ratio = estimate / holds;
        assert!(
            (0.6..1.6).contains(&ratio),
            "{what}: {holds} bytes are held, and {estimate} estimated"
        );
    }
    Ok(())
}
