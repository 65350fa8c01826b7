use crate::{message, numbers};
use kiln_data::{ConcatDataset, DataLoader, Dataset, FnDataset, Subset, TensorDataset};
use kiln_tensor::{DType, Result, Tensor};
use std::sync::Arc;

#[test]
fn rows_of_tensors_are_samples() -> Result<()> {
    let x = Tensor::randn([5, 2, 3], DType::F32);
    let y = Tensor::arange(0, 5, 1);
    let data = Arc::new(TensorDataset::new((x.clone(), y))?);
    assert_eq!((data.len(), data.is_empty()), (5, false));
    for i in 0..5 {
        let (row, label) = data.get(i)?;
        assert_eq!(row.shape()?, [2, 3]);
        assert_eq!(row.to_vec::<f32>()?, x.i(i as i64).to_vec::<f32>()?);
        assert_eq!(label.item::<i64>()?, i as i64);
    }
    assert!(message(data.get(5)).contains("the index 5 is out of range for 5 samples"));
    let loader = DataLoader::new(data).batch_size(5).build()?;
    let (all, labels) = loader.iter().next().unwrap()?;
    assert_eq!(all.to_vec::<f32>()?, x.to_vec::<f32>()?);
    assert_eq!(labels.to_vec::<i64>()?, [0, 1, 2, 3, 4]);
    Ok(())
}

#[test]
fn every_dtype_and_empty_rows_survive() -> Result<()> {
    for dtype in DType::ALL {
        let x = Tensor::from([0i64, 1, 1, 0, 1, 0])
            .to_dtype(dtype)
            .reshape([3, 2]);
        let data = TensorDataset::new([x.clone()])?;
        let loader = DataLoader::new(data).batch_size(3).build()?;
        let [batch] = loader.iter().next().unwrap()?;
        assert_eq!(batch.dtype(), dtype);
        assert_eq!(batch.to_bytes()?, x.to_bytes()?);
    }
    let empty = TensorDataset::new(Tensor::zeros([4, 0], DType::F32))?;
    let loader = DataLoader::new(empty).batch_size(3).build()?;
    assert_eq!(loader.iter().next().unwrap()?.shape()?, [3, 0]);
    Ok(())
}

#[test]
fn tensors_without_common_rows_are_errors() {
    let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32);
    let found = message(TensorDataset::new((ones(&[4, 2]), ones(&[3]))));
    assert!(
        found.contains("the tensors differ in dim 0: their shapes are [[4, 2], [3]]"),
        "{found}"
    );
    let found = message(TensorDataset::new(vec![ones(&[4]), ones(&[])]));
    assert!(found.contains("tensor 1 is a scalar"), "{found}");
    let poisoned = ones(&[2]).reshape([3]);
    assert!(message(TensorDataset::new(poisoned)).contains("reshape"));
}

#[test]
fn subsets_concatenations_and_maps() -> Result<()> {
    let all =
        |d: &dyn Dataset<Item = i64>| (0..d.len()).map(|i| d.get(i)).collect::<Result<Vec<_>>>();
    let subset = Subset::new(numbers(10), [7, 1, 1])?;
    assert_eq!(all(&subset)?, [7, 1, 1]);
    assert!(message(Subset::new(numbers(3), [0, 3])).contains("the index 3 is out of range for 3"));
    assert!(message(subset.get(3)).contains("the index 3 is out of range for 3"));
    let parts: Vec<Box<dyn Dataset<Item = i64>>> = vec![
        Box::new(numbers(0)),
        Box::new(numbers(2)),
        Box::new(numbers(0)),
        Box::new(subset.map(|i| Ok(100 + i))),
        Box::new(numbers(0)),
    ];
    let joined = ConcatDataset::new(parts);
    assert_eq!(all(&joined)?, [0, 1, 107, 101, 101]);
    assert!(message(joined.get(5)).contains("the index 5 is out of range for 5"));
    let none = ConcatDataset::new(Vec::<FnDataset<fn(usize) -> Result<i64>>>::new());
    assert!(none.is_empty());
    Ok(())
}
