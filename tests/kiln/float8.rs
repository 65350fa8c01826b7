//! Floats of 8 bits: stored, moved, compared and cast, and refused where they would be computed in.

use kiln::nn::StateDict;
use kiln::{DType, ErrorKind, Result, Tensor, Var, cat, compile, where_};

const FLOATS: [DType; 4] = [
    DType::F8E4M3,
    DType::F8E5M2,
    DType::F8E4M3FNUZ,
    DType::F8E5M2FNUZ,
];

/// Every f16, and f32 numbers of every exponent with fractions around those of all floats of 8 bits and their
/// midpoints.
fn numbers() -> [Tensor; 2] {
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let around = |high: u32| [0, 1, 0x7_ffff].map(|low| f32::from_bits(high << 19 | low));
    let singles: Vec<f32> = (0..1 << 13).flat_map(around).collect();
    [
        Tensor::from_bytes(&halves, DType::F16, [1 << 16]),
        Tensor::from(singles),
    ]
}

#[test]
fn casts_round_once_in_every_kernel() -> Result<()> {
    for dtype in FLOATS {
        for x in numbers() {
            let wide = x.to_dtype(DType::F64).to_vec::<f64>()?;
            let bits = dtype.float_bytes(&wide);
            assert_eq!(x.to_dtype(dtype).to_bytes()?, bits, "{dtype}");
            // After other work, and widened in the same kernel.
            let both = (x.to_dtype(DType::F64) * 1.0).to_dtype(dtype);
            let back = both.to_dtype(DType::F32).nan_to_num();
            let (both, back) = (both.to_bytes()?, back.to_vec::<f32>()?);
            assert_eq!(both, bits, "{dtype}");
            let narrow = dtype.floats(&bits).into_iter();
            let numbers = narrow.map(|x| match x as f32 {
                x if x.is_nan() => 0.0,
                x => x.clamp(f32::MIN, f32::MAX),
            });
            assert_eq!(back, numbers.collect::<Vec<f32>>(), "{dtype}");
        }
    }
    Ok(())
}

/// Casts back and forth stay where they change numbers: FNUZ has neither infinities nor −0.
#[test]
fn casts_that_keep_nearly_all_numbers_stay() -> Result<()> {
    let x = Tensor::from([f32::INFINITY, -0.0, 1.0]).to_dtype(DType::F8E5M2);
    let x = Tensor::from_bytes(&x.to_bytes()?, DType::F8E5M2, [3]);
    let back = x.to_dtype(DType::F8E5M2FNUZ).to_dtype(DType::F8E5M2);
    let back = back.to_dtype(DType::F32).to_vec::<f32>()?;
    assert!(back[0].is_nan() && back[1].to_bits() == 0 && back[2] == 1.0);
    Ok(())
}

#[test]
fn they_are_moved_compared_and_printed() -> Result<()> {
    for dtype in FLOATS {
        let bytes: Vec<u8> = (0..=255).collect();
        let x = Tensor::from_bytes(&bytes, dtype, [16, 16]);
        let bytes = dtype.float_bytes(&dtype.floats(&bytes)); // one NaN
        let transposed = x
            .transpose(0, 1)
            .index_select(0, Tensor::from([3i64, 5, 7]));
        let want: Vec<u8> = (0..48).map(|i| 3 + 2 * (i / 16) + 16 * (i % 16)).collect();
        assert_eq!(transposed.to_bytes()?, want);
        let rows = x.index_select(0, Tensor::from([15i64, 0]));
        assert_eq!(
            rows.to_bytes()?,
            [&bytes[240..], &bytes[..16]].concat(),
            "{dtype}"
        );
        let joined = cat([&rows, &rows.flip([0])], 1).reshape([64]);
        assert_eq!(joined.to_bytes()?[16..32], bytes[..16]);
        let set = x.set((1, 1), Tensor::from(3.0f32).to_dtype(dtype));
        assert_eq!(
            set.select(0, 1).to_bytes()?[1..3],
            [dtype.float_bytes(&[3.0])[0], 18]
        );

        // All but NaN are themselves.
        let nan = x.ne(&x).to_dtype(DType::I64).sum(()).item::<i64>()?;
        let nans = dtype.floats(&bytes).iter().filter(|x| x.is_nan()).count();
        assert_eq!(nan, nans as i64, "{dtype}");
        assert_eq!(x.eq(1.0).to_dtype(DType::I64).sum(()).item::<i64>()?, 1);
        let chosen = where_(x.eq(&x), &x, Tensor::zeros([16, 16], dtype));
        assert!(chosen.eq(&chosen).all(()).item::<bool>()?);
        let text = Tensor::from([1.5f32, -0.25]).to_dtype(dtype).to_string();
        assert_eq!(text, format!("tensor([ 1.5000, -0.2500], dtype={dtype})"));
    }
    Ok(())
}

#[test]
fn arithmetic_on_them_is_refused() {
    let x = Tensor::ones([3], DType::F8E4M3);
    for (t, name) in [
        (&x + &x, "add"),
        (&x * 2.0, "mul"),
        (x.exp(), "exp"),
        (x.sum(()), "sum"),
        (x.lt(&x), "lt"),
        (x.argsort(0), "argsort"),
        (x.reshape([1, 3]).matmul(x.reshape([3, 1])), "matmul"),
        (x.softmax(0), "softmax"),
        (x.cumsum(0), "cumsum"),
    ] {
        let e = t.to_bytes().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Op, "{e}");
        let text = e.to_string();
        assert!(text.contains(name) && text.contains("f8_e4m3"), "{text}");
        assert!(text.contains("cast it to f32 first"), "{text}");
    }
    let e = (&x + Tensor::ones([3], DType::F32)).to_bytes().unwrap_err();
    assert!(e.message().contains("cast one of them"), "{e}");
}

#[test]
fn weights_are_kept_in_8_bits() -> Result<()> {
    let x = Tensor::randn([5, 7], DType::F32);
    let w = Tensor::randn([7, 3], DType::F32);
    for dtype in FLOATS {
        let narrow = w.to_dtype(dtype);
        let wide = Tensor::from(dtype.floats(&narrow.to_bytes()?)).reshape([7, 3]);
        let want = x.matmul(wide.to_dtype(DType::F32)).to_vec::<f32>()?;
        assert_eq!(x.matmul(narrow.to_dtype(DType::F32)).to_vec::<f32>()?, want);
        let product = compile((&x, &narrow), |(x, w)| x.matmul(w.to_dtype(DType::F32)))?;
        assert_eq!(product.run((&x, &narrow))?.to_vec::<f32>()?, want);

        // The gradient goes through the cast, and is rounded as the value is.
        let v = Var::parameter(w.to_dtype(dtype))?;
        (v.to_dtype(DType::F32) * 3.0).sum(()).backward()?;
        let grad = v.grad().unwrap();
        assert_eq!(grad.to_bytes()?, dtype.float_bytes(&[3.0; 21]));

        let folder = std::env::temp_dir().join(format!("kiln-{}-{dtype}", std::process::id()));
        let state = StateDict::from_iter([("w".to_string(), narrow.clone())]);
        state.save(&folder)?;
        let read = StateDict::load(&folder)?;
        let _ = std::fs::remove_file(&folder);
        let read = read.get("w").unwrap();
        assert_eq!(
            (read.dtype(), read.to_bytes()?),
            (dtype, narrow.to_bytes()?)
        );
    }
    Ok(())
}
