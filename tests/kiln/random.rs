//! Random numbers: repeatable, counter-based, uniform and normal.

use kiln::{DType, Tensor, manual_seed};
use kiln_base::prim::{RandomKind, random_uniform_f32, random_words};
use std::sync::Mutex;

/// A lock: the default generator belongs to the process.
static SEED: Mutex<()> = Mutex::new(());

#[test]
fn a_seed_makes_a_run_repeatable() {
    let _guard = SEED.lock().unwrap_or_else(|e| e.into_inner());
    let draw = || {
        manual_seed(7);
        let a = Tensor::rand([5], DType::F32);
        let b = Tensor::randn([5], DType::F64);
        // The order of reading does not matter.
        let b = b.to_vec::<f64>().unwrap();
        (
            a.to_vec::<f32>().unwrap(),
            b,
            Tensor::randint(-3, 4, [50]).to_vec::<i64>().unwrap(),
        )
    };
    let first = draw();
    assert_eq!(first, draw());
    assert_ne!(first.0[0], first.0[1]);
    assert!(first.2.iter().all(|i| (-3..4).contains(i)));
}

#[test]
fn numbers_are_philox_of_seed_offset_and_index() {
    let _guard = SEED.lock().unwrap_or_else(|e| e.into_inner());
    manual_seed(42);
    let skipped = Tensor::rand([3], DType::F32);
    let t = Tensor::rand([2, 2], DType::F32).transpose(0, 1);
    let want: Vec<f32> = [0, 2, 1, 3]
        .map(|i| random_uniform_f32(random_words(RandomKind::Uniform, false, 3 + i, 42)))
        .into();
    assert_eq!(t.to_vec::<f32>().unwrap(), want);
    drop(skipped);
}

#[test]
fn numbers_like_a_tensor_have_its_shape_and_dtype() {
    let _guard = SEED.lock().unwrap_or_else(|e| e.into_inner());
    manual_seed(3);
    let x = Tensor::zeros([2, 50], DType::F64);
    let (normal, whole) = (x.randn_like(), x.randint_like(-2, 3));
    for y in [&normal, &whole] {
        assert_eq!((y.dims(), y.dtype()), (x.dims(), DType::F64));
    }
    let normal = normal.to_vec::<f64>().unwrap();
    assert!(normal.iter().any(|n| *n < -0.5) && normal.iter().any(|n| *n > 0.5));
    let mut whole = whole.to_vec::<f64>().unwrap();
    whole.sort_by(f64::total_cmp);
    whole.dedup();
    assert_eq!(whole, [-2.0, -1.0, 0.0, 1.0, 2.0]);
    let counts = Tensor::zeros([4], DType::U8);
    assert_eq!(counts.randint_like(0, 9).dtype(), DType::U8);
    assert_eq!(counts.randn_like().dtype(), DType::F32);
    let e = counts.randint_like(5, 5).to_vec::<u8>().unwrap_err();
    assert!(e.to_string().contains("no integer in 5..5"), "{e}");
}

#[test]
fn moments_are_right() {
    let _guard = SEED.lock().unwrap_or_else(|e| e.into_inner());
    manual_seed(1);
    let n = 100_000;
    let u = Tensor::rand([n], DType::F32).to_vec::<f32>().unwrap();
    let mean = u.iter().map(|x| *x as f64).sum::<f64>() / n as f64;
    assert!((mean - 0.5).abs() < 0.005, "{mean}");
    let z = Tensor::randn([n], DType::F32).to_vec::<f32>().unwrap();
    let mean = z.iter().map(|x| *x as f64).sum::<f64>() / n as f64;
    let variance = z.iter().map(|x| (*x as f64 - mean).powi(2)).sum::<f64>() / n as f64;
    assert!(
        mean.abs() < 0.015 && (variance - 1.0).abs() < 0.02,
        "{mean} {variance}"
    );
    let kept = Tensor::ones([n], DType::F32).dropout(0.25);
    let kept = kept.to_vec::<f32>().unwrap();
    assert!(
        kept.iter()
            .all(|x| *x == 0.0 || (*x - 4.0 / 3.0).abs() < 1e-6)
    );
    let share = kept.iter().filter(|x| **x == 0.0).count() as f64 / n as f64;
    assert!((share - 0.25).abs() < 0.01, "{share}");
}

#[test]
fn compiled_functions_draw_in_recording_order() {
    let _guard = SEED.lock().unwrap_or_else(|e| e.into_inner());
    let draw = || {
        let unused = Tensor::rand([3], DType::F32);
        let (a, b) = (
            Tensor::rand([2], DType::F32),
            Tensor::randn([2], DType::F32),
        );
        drop(unused);
        [b, a]
    };
    let compiled = kiln::compile((), |()| draw()).unwrap();
    manual_seed(5);
    let lazy = draw().map(|t| t.to_vec::<f32>().unwrap());
    manual_seed(5);
    let run: Vec<Vec<f32>> = compiled
        .run(())
        .unwrap()
        .iter()
        .map(|t| t.to_vec().unwrap())
        .collect();
    assert_eq!(run, lazy);
}

#[test]
fn ranges_are_kept() {
    let _guard = SEED.lock().unwrap_or_else(|e| e.into_inner());
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let most = Tensor::rand([1 << 18], dtype)
            .to_dtype(DType::F32)
            .amax([0]);
        assert!(most.item::<f32>().unwrap() < 1.0);
    }
    assert!(Tensor::randint(-5, i64::MAX, [2]).realize().is_err());
    assert!(Tensor::randint(3, 3, [2]).realize().is_err());
    assert!(
        Tensor::from_slice(&[1i64], [1])
            .dropout(0.5)
            .realize()
            .is_err()
    );
}
