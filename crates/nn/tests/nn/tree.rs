//! Members, walks, modes and freezing.

use crate::support::names;
use kiln_nn::{
    BatchNorm, BatchNorm1d, BatchNorm2d, Conv2d, Dropout, Forward, Identity, Kernel, Linear,
    LinearOptions, Mode, Module, ModuleList, ReLU, Sequential, sequential,
};
use kiln_tensor::{DType, Result, Tensor, Var, no_grad};
use std::sync::Arc;

fn var(values: &[f32]) -> Var {
    Var::new(Tensor::from_slice(values, [values.len()])).unwrap()
}

fn parameter(values: &[f32]) -> Var {
    Var::parameter(Tensor::from_slice(values, [values.len()])).unwrap()
}

/// Every kind of field.
#[derive(Module)]
struct Everything<M> {
    scale: Var,
    offset: Var,
    #[buffer]
    table: Option<Var>,
    #[param]
    start: Var,
    #[skip]
    scratch: Var,
    inner: M,
    absent: Option<Linear>,
    present: Option<Linear>,
    blocks: Vec<Sequential>,
    list: ModuleList<Box<dyn Forward>>,
    boxed: Box<dyn Forward>,
    #[skip]
    _other: std::time::Duration,
    mode: Mode,
    _width: usize,
    _name: String,
}

fn everything() -> Result<Everything<BatchNorm1d>> {
    Ok(Everything {
        scale: parameter(&[1.0, 2.0]),
        offset: var(&[3.0]),
        table: Some(parameter(&[4.0])),
        start: var(&[5.0, 6.0, 7.0]),
        scratch: parameter(&[8.0]),
        inner: BatchNorm1d::new(3)?,
        absent: None,
        present: Some(Linear::with(2, 1, LinearOptions::new().bias(false))?),
        blocks: vec![Sequential::new().add(Linear::new(1, 2)?)],
        list: ModuleList(vec![Box::new(ReLU::new()), Box::new(Linear::new(1, 1)?)]),
        boxed: Box::new(Dropout::new(0.1).unwrap()),
        _other: std::time::Duration::ZERO,
        mode: Mode::new(),
        _width: 3,
        _name: String::new(),
    })
}

#[test]
fn the_derive_finds_what_every_kind_of_field_holds() {
    let m = everything().unwrap();
    let wanted = [
        "scale",
        "start",
        "offset",
        "table",
        "inner.weight",
        "inner.bias",
        "inner.running_mean",
        "inner.running_var",
        "inner.num_batches_tracked",
        "present.weight",
        "blocks.0.0.weight",
        "blocks.0.0.bias",
        "list.1.weight",
        "list.1.bias",
    ];
    assert_eq!(names(&m), wanted);
    let buffers: Vec<String> = m.named_buffers().into_iter().map(|(n, _)| n).collect();
    assert_eq!(
        buffers,
        [wanted[2], wanted[3], wanted[6], wanted[7], wanted[8]]
    );
    assert_eq!(m.scratch.shape().unwrap(), [1]);
    assert_eq!(m.num_parameters(), 2 + 3 + 6 + 2 + 4 + 2);
    assert!(m.absent.is_none() && m.mode.is_training());
}

#[test]
fn tuple_structs_name_their_fields_by_position() {
    #[derive(Module)]
    struct Pair(Linear, #[skip] u8, Linear);
    let pair = Pair(Linear::new(1, 1).unwrap(), 0, Linear::new(1, 1).unwrap());
    assert_eq!(names(&pair), ["0.weight", "0.bias", "2.weight", "2.bias"]);
    assert_eq!(pair.1, 0);
}

#[test]
fn printing_shows_the_tree() {
    let m = everything().unwrap();
    assert_eq!(
        m.to_string(),
        "Everything(
  (inner): BatchNorm1d(3, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
  (present): Linear(in_features=2, out_features=1, bias=False)
  (blocks.0): Sequential(
    (0): Linear(in_features=1, out_features=2, bias=True)
  )
  (list): ModuleList(
    (0): ReLU()
    (1): Linear(in_features=1, out_features=1, bias=True)
  )
  (boxed): Dropout(p=0.1)
)"
    );
    let conv = Conv2d::new(
        3,
        8,
        Kernel::new([3, 5]).padding([1, 2]).stride(2).bias(false),
    )
    .unwrap();
    assert_eq!(
        conv.to_string(),
        "Conv2d(3, 8, kernel_size=(3, 5), stride=(2, 2), padding=(1, 2), bias=False)"
    );
}

#[test]
fn modules_are_recursive_and_children_are_not() {
    let m = everything().unwrap();
    let paths: Vec<String> = m.named_modules().into_iter().map(|(p, _)| p).collect();
    let wanted = [
        "",
        "inner",
        "present",
        "blocks.0",
        "blocks.0.0",
        "list",
        "list.0",
        "list.1",
        "boxed",
    ];
    assert_eq!(paths, wanted);
    let children: Vec<&str> = m.children().iter().map(|m| m.name()).collect();
    assert_eq!(
        children,
        [
            "BatchNorm1d",
            "Linear",
            "Sequential",
            "ModuleList",
            "Dropout"
        ]
    );
    assert!(
        m.get_submodule("list.1")
            .unwrap()
            .downcast_ref::<Linear>()
            .is_some()
    );
    assert!(m.get_submodule("list.2").is_err());
    assert_eq!(
        m.get_parameter("inner.weight").unwrap().id(),
        m.inner.weight.as_ref().unwrap().id()
    );
    assert!(m.get_parameter("inner.running_mean").is_err());
}

#[test]
fn apply_visits_children_before_what_holds_them() {
    let m = sequential![
        sequential![ReLU::new(), Identity::new()].unwrap(),
        Dropout::default()
    ]
    .unwrap();
    let mut seen = Vec::new();
    m.apply(&mut |m| seen.push(m.name().to_string()));
    assert_eq!(
        seen,
        ["ReLU", "Identity", "Sequential", "Dropout", "Sequential"]
    );
}

#[test]
fn a_shared_parameter_counts_once_and_is_saved_under_both_names() {
    #[derive(Module)]
    struct Shared {
        left: Linear,
        right: Linear,
        first: Arc<Linear>,
        second: Arc<Linear>,
    }
    let shared = Arc::new(Linear::new(2, 2).unwrap());
    let mut m = Shared {
        left: Linear::new(3, 3).unwrap(),
        right: Linear::new(3, 3).unwrap(),
        first: shared.clone(),
        second: shared,
    };
    m.right.weight = m.left.weight.clone();
    let parameters: Vec<String> = m.named_parameters().into_iter().map(|(n, _)| n).collect();
    let wanted = [
        "left.weight",
        "left.bias",
        "right.bias",
        "first.weight",
        "first.bias",
    ];
    assert_eq!(parameters, wanted);
    assert_eq!(m.num_parameters(), 9 + 3 + 3 + 6);
    assert_eq!(names(&m).len(), 8);
}

#[test]
fn freezing_stops_gradients_and_keeps_batch_norms_in_evaluation() {
    let m = sequential!["norm": BatchNorm2d::new(3), "drop": Dropout::new(0.5), "conv": Conv2d::new(3, 2, 1)].unwrap();
    let norm = m.get_submodule("norm").unwrap();
    norm.freeze();
    m.train();
    let norm = norm.downcast_ref::<BatchNorm2d>().unwrap();
    assert_eq!((m.num_parameters(), m.num_trainable()), (6 + 8, 8));
    assert!(!norm.is_training());
    assert!(
        m.get_submodule("drop").unwrap().is_training(),
        "dropout goes on"
    );
    let x = Tensor::rand([4, 3, 2, 2], DType::F32);
    m.call(&x).sum(()).backward().unwrap();
    assert!(norm.weight.as_ref().unwrap().grad().is_none());
    assert!(m.get_parameter("conv.weight").unwrap().grad().is_some());
    assert_eq!(
        norm.running_mean
            .as_ref()
            .unwrap()
            .get()
            .to_vec::<f32>()
            .unwrap(),
        [0.0; 3]
    );
    assert_eq!(
        m.named_parameters().len(),
        4,
        "frozen parameters are parameters"
    );
    assert!(m.buffers().iter().all(|b| !b.requires_grad()));

    m.unfreeze().unwrap();
    assert!(norm.is_training());
    assert_eq!(m.num_trainable(), 14);
    assert!(
        m.buffers().iter().all(|b| !b.requires_grad()),
        "statistics are not parameters"
    );
}

#[test]
fn freezing_by_name_takes_the_norms_of_the_whole_names_only() {
    let m = sequential!["a": BatchNorm1d::new(2), "b": BatchNorm1d::with(2, BatchNorm::new().affine(false)), "c": BatchNorm1d::new(2)].unwrap();
    m.freeze_where(&|name| name.starts_with("a.") || name.starts_with("b.") || name == "c.bias");
    m.train();
    let training: Vec<bool> = m.children().iter().map(|m| m.is_training()).collect();
    assert_eq!(training, [false, false, true]);
    assert_eq!(m.num_trainable(), 2);
}

#[test]
fn gradients_alone_can_be_switched_off() {
    let norm = BatchNorm1d::new(2).unwrap();
    norm.requires_grad_(false).unwrap();
    assert_eq!((norm.num_trainable(), norm.is_training()), (0, true));
    norm.requires_grad_(true).unwrap();
    assert_eq!(norm.num_trainable(), 4);
}

#[test]
fn layers_can_be_replaced_and_reset() {
    let mut m = sequential!["body": Linear::new(3, 4), "head": Linear::new(4, 2)].unwrap();
    let head = Linear::new(4, 7).unwrap();
    m.replace("head", head).unwrap();
    let y = m.call(Tensor::ones([5, 3], DType::F32));
    assert_eq!(y.shape().unwrap(), [5, 7]);
    let e = m.replace("tail", Identity::new()).unwrap_err();
    assert!(
        e.message().contains("\"tail\"") && e.message().contains("body"),
        "{e}"
    );

    let weight = m.get_parameter("body.weight").unwrap();
    let before = weight.get().to_vec::<f32>().unwrap();
    m.reset_parameters().unwrap();
    assert_ne!(weight.get().to_vec::<f32>().unwrap(), before);
}

#[test]
fn zero_grad_clears_every_gradient() {
    let m = Linear::new(2, 2).unwrap();
    m.call(Tensor::ones([1, 2], DType::F32))
        .sum(())
        .backward()
        .unwrap();
    assert!(m.parameters().iter().all(|p| p.grad().is_some()));
    m.zero_grad();
    assert!(m.parameters().iter().all(|p| p.grad().is_none()));
    let y = no_grad(|| m.call(Tensor::ones([1, 2], DType::F32)));
    assert!(!y.requires_grad());
}

#[test]
fn eval_and_train_reach_every_layer() {
    let m = everything().unwrap();
    m.eval();
    assert!(!m.is_training() && !m.mode.is_training());
    m.train();
    assert!(m.is_training() && m.mode.is_training());
    m.boxed.eval();
    assert!(m.is_training());
}
