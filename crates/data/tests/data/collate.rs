use crate::message;
use kiln_data::Collate;
use kiln_tensor::{DType, Result, Tensor};
use std::collections::BTreeMap;

#[test]
fn numbers_strings_and_tensors() -> Result<()> {
    let floats = f32::collate(vec![1.5, -0.0, f32::NAN, f32::INFINITY])?;
    assert_eq!(floats.dtype(), DType::F32);
    let bits = |v: Vec<f32>| v.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(
        bits(floats.to_vec()?),
        bits(vec![1.5, -0.0, f32::NAN, f32::INFINITY])
    );
    assert_eq!(usize::collate(vec![3, 4])?.to_vec::<i64>()?, [3, 4]);
    assert_eq!(bool::collate(vec![true, false])?.dtype(), DType::Bool);
    assert_eq!(<&str>::collate(vec!["a", "b"])?, ["a", "b"]);
    let (a, b) = (
        Tensor::randn([2, 3], DType::F64),
        Tensor::randn([2, 3], DType::F64),
    );
    let both = Tensor::collate(vec![a.clone(), b.clone()])?;
    assert_eq!(both.shape()?, [2, 2, 3]);
    assert_eq!(
        both.to_vec::<f64>()?,
        [a.to_vec::<f64>()?, b.to_vec()?].concat()
    );
    Ok(())
}

#[test]
fn tuples_lists_and_maps_collate_their_parts() -> Result<()> {
    let (numbers, (names, flags)) = Collate::collate(vec![
        (1i64, ("a".to_string(), [true, false])),
        (2, ("b".to_string(), [true, true])),
    ])?;
    assert_eq!(numbers.to_vec::<i64>()?, [1, 2]);
    assert_eq!(names, ["a", "b"]);
    assert_eq!(flags[1].to_vec::<bool>()?, [false, true]);
    let columns = Collate::collate(vec![vec![1i32, 2, 3], vec![4, 5, 6]])?;
    assert_eq!(columns.len(), 3);
    assert_eq!(columns[2].to_vec::<i32>()?, [3, 6]);
    Ok(())
}

#[test]
fn samples_that_do_not_fit_are_named() {
    let ones = |shape: &[usize], dtype| Tensor::ones(shape, dtype);
    let shapes = vec![
        ones(&[2], DType::F32),
        ones(&[2], DType::F32),
        ones(&[3], DType::F32),
    ];
    assert!(message(Tensor::collate(shapes)).contains("sample 0 is f32[2], sample 2 is f32[3]"));
    let dtypes = vec![ones(&[2], DType::F32), ones(&[2], DType::F64)];
    assert!(message(Tensor::collate(dtypes)).contains("sample 0 is f32[2], sample 1 is f64[2]"));
    let lists = message(Vec::collate(vec![vec![1i64], vec![1, 2]]));
    assert!(
        lists.contains("sample 0 has 1 parts, sample 1 has 2"),
        "{lists}"
    );
    let maps = vec![BTreeMap::from([("x", 1i64)]), BTreeMap::from([("y", 1)])];
    assert!(
        message(BTreeMap::collate(maps))
            .contains(r#"sample 0 has the keys ["x"], sample 1 has ["y"]"#)
    );
    let nested = |n: usize| (0i64, BTreeMap::from([("image", ones(&[n], DType::F32))]));
    let found = message(Collate::collate(vec![nested(1), nested(2)]));
    assert!(
        found.contains(r#"in part "image" of the samples"#),
        "{found}"
    );
    assert!(found.contains("in part 1 of the samples"), "{found}");
    let poisoned = Tensor::ones([2], DType::F32).reshape([3]);
    assert!(message(Tensor::collate(vec![poisoned])).contains("reshape"));
    assert!(message(Tensor::collate(Vec::new())).contains("no sample"));
}
