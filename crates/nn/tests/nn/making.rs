//! Construction of layers: settings that are read back, sequences, copies.

use crate::support::{held, names, random, values};
use kiln_nn::*;
use kiln_tensor::{
    AvgPool, CrossEntropy, Ctc, DType, ErrorKind, GaussianNll, Huber, MultiMargin, Pool, Reduction,
    Result, SmoothL1, Tensor, TripletMargin, Var, with_default_dtype, with_seed,
};
use std::sync::Arc;

#[test]
fn what_was_said_is_read_back() {
    let options = Kernel::new([3, 5])
        .stride(2)
        .padding([1, 2])
        .dilation([1, 2])
        .groups(2)
        .bias(false);
    let conv = Conv2d::new(4, 6, options).unwrap();
    assert_eq!(
        (conv.in_channels(), conv.out_channels(), conv.groups()),
        (4, 6, 2)
    );
    assert_eq!(
        (conv.kernel_size(), conv.stride(), conv.dilation()),
        ([3, 5], [2, 2], [1, 2])
    );
    assert!(conv.bias.is_none());
    assert_eq!(
        conv.to_string(),
        "Conv2d(4, 6, kernel_size=(3, 5), stride=(2, 2), padding=(1, 2), dilation=(1, 2), groups=2, bias=False)"
    );
    let options = TransposedKernel::new(3)
        .stride(2)
        .padding(1)
        .output_padding(1);
    let up = ConvTranspose1d::new(4, 6, options).unwrap();
    assert_eq!(
        (up.padding(), up.output_padding(), up.stride()),
        ([1], [1], [2])
    );
    assert_eq!(
        up.to_string(),
        "ConvTranspose1d(4, 6, kernel_size=(3,), stride=(2,), padding=(1,), output_padding=(1,))"
    );
    let norm = BatchNorm3d::with(4, BatchNorm::new().eps(1e-3).momentum(None)).unwrap();
    assert_eq!(
        (norm.num_features(), norm.eps(), norm.momentum()),
        (4, 1e-3, None)
    );
    assert!(norm.affine() && norm.track_running_stats());
    assert!(!InstanceNorm2d::new(4).unwrap().affine());
    let layer = LayerNorm::with([2, 3], Norm::new().eps(1e-6).bias(false)).unwrap();
    assert_eq!(
        (layer.normalized_shape(), layer.eps(), layer.bias.is_none()),
        (&[2, 3][..], 1e-6, true)
    );
    let lstm = LSTM::with(3, 4, Recurrent::new().num_layers(2).batch_first(true)).unwrap();
    assert_eq!(
        (lstm.input_size(), lstm.hidden_size(), lstm.num_layers()),
        (3, 4, 2)
    );
    assert!(lstm.batch_first() && !lstm.bidirectional());
    assert_eq!(
        lstm.weight("weight_hh_l1").unwrap().shape().unwrap(),
        [16, 4]
    );
    let pool = MaxPool2d::new(Pool::new(3).padding(1)).unwrap();
    assert_eq!(
        (
            &pool.kernel_size().0[..],
            &pool.stride().0[..],
            &pool.padding().0[..]
        ),
        (&[3][..], &[3][..], &[1][..])
    );
    let pool = AvgPool2d::new(AvgPool::new([2, 3]).ceil_mode(true)).unwrap();
    assert!(pool.ceil_mode());
    assert_eq!(Dropout::new(0.25).unwrap().p(), 0.25);
    let rows = Embedding::with(5, 3, Rows::new().padding_idx(-1)).unwrap();
    assert_eq!(
        (
            rows.num_embeddings(),
            rows.embedding_dim(),
            rows.padding_idx()
        ),
        (5, 3, Some(4))
    );
    assert_eq!(held(&rows.weight)[12..], [0.0; 3]);
    let options = TransformerOptions::new().dropout(0.0).norm_first(true);
    let block = TransformerEncoderLayer::with(8, 2, options).unwrap();
    assert!(block.options().norm_first && block.self_attn.num_heads() == 2);
    assert_eq!(LeakyReLU::new(0.2).negative_slope(), 0.2);
}

/// The random number that is drawn after a construction.
fn next_number(f: &dyn Fn() -> bool) -> Vec<f64> {
    with_seed(4, || {
        assert!(f());
        values(&Tensor::rand([1], DType::F64))
    })
}

#[test]
fn a_layer_draws_what_it_has_and_no_more() {
    // A layer without parameters does not advance the generator.
    let after = |made: fn() -> Result<usize>| next_number(&|| made().unwrap() > 0);
    let alone =
        after(|| Ok(Linear::with(4, 3, LinearOptions::new().bias(false))?.num_parameters()));
    let beside_others = after(|| {
        Dropout::new(0.5)?;
        MaxPool2d::new(3)?;
        Ok(Linear::with(4, 3, LinearOptions::new().bias(false))?.num_parameters())
    });
    assert_eq!(alone, beside_others);
    let biased = after(|| Ok(Linear::new(4, 3)?.num_parameters()));
    assert_ne!(biased, alone, "a bias is drawn");
    // The probability of dropout changes no weight.
    let weights = |p: f64| {
        let options = TransformerOptions::new().dim_feedforward(8).dropout(p);
        let block = with_seed(1, || TransformerEncoderLayer::with(4, 2, options)).unwrap();
        block.parameters().iter().flat_map(held).collect::<Vec<_>>()
    };
    assert_eq!(weights(0.0), weights(0.5));
}

#[test]
fn sequences_take_layers_results_and_closures() {
    let model = sequential![
        Linear::new(3, 4),
        ReLU::new(),
        |x: Tensor| x * 2.0,
        |x: Tensor| {
            let [n, _] = x.size()?;
            Ok(x.reshape([n, 2, 2]))
        },
        Flatten::new(),
        Linear::new(4, 2),
    ]
    .unwrap();
    assert_eq!(model.len(), 6);
    let y = model.call(Tensor::ones([5, 3], DType::F32));
    assert_eq!(y.shape().unwrap(), [5, 2]);
    let e = model.call(Tensor::ones([5, 3, 1], DType::F32));
    assert!(
        e.error()
            .unwrap()
            .to_string()
            .contains("layer 0 of Sequential"),
        "{e:?}"
    );
    let e = sequential![ReLU::new(), |x: Tensor| x.reshape([7])].unwrap();
    let line = line!() - 1;
    let e = e
        .call(Tensor::ones([2], DType::F32))
        .error()
        .unwrap()
        .clone();
    assert_eq!(e.loc().line(), line, "{e}");
    assert!(e.to_string().contains("layer 1 of Sequential"), "{e}");
    let empty: [Result<Sequential>; 2] = [sequential![], Ok(Sequential::new())];
    assert!(empty.into_iter().all(|s| s.unwrap().is_empty()));
}

#[test]
fn sequences_are_indexed_cut_and_changed() {
    let make = || sequential!["a": Linear::new(3, 4), "b": Tanh::new(), "c": Linear::new(4, 2)];
    let mut model = with_default_dtype(DType::F64, make).unwrap();
    let x = random([5, 3]);
    let whole = model.call(&x);
    let (front, back) = (model.slice(..2).unwrap(), model.slice(2..).unwrap());
    assert_eq!(values(&back.call(front.call(&x))), values(&whole));
    assert_eq!(names(&back), ["c.weight", "c.bias"]);
    assert_eq!(
        back.get_as::<Linear>(0).unwrap().weight.id(),
        model.get_as::<Linear>(2).unwrap().weight.id(),
        "slices share layers"
    );
    assert!(model.slice(2..4).is_err() && model.slice(3..).unwrap().is_empty());
    let shown: Vec<String> = model.iter().map(|m| m.name().to_string()).collect();
    assert_eq!(shown, ["Linear", "Tanh", "Linear"]);
    assert_eq!(
        values(&model["c"].call(model[1].call(model[0].call(&x)))),
        values(&whole)
    );
    let e = model.get_as::<ReLU>(0).err().unwrap();
    assert!(e.message().contains("layer 0 is a Linear"), "{e}");
    assert!(model.get_as::<Linear>(3).is_err() && model.get(3).is_none());

    let last = model.pop().unwrap();
    assert_eq!((last.name(), model.len()), ("Linear", 2));
    model.insert(0, Lambda::new(|x: Tensor| x * 0.0)).unwrap();
    assert!(model.insert(9, ReLU::new()).is_err() && model.remove(9).is_err());
    assert_eq!(names(&model), ["a.weight", "a.bias"]);
    model.push(ReLU::new());
    model.extend(back);
    assert_eq!(model.len(), 5);
    model.remove(0).unwrap();
    assert_eq!(model.call(&x).shape().unwrap(), [5, 2]);
}

/// Every kind of field that a copy must handle.
#[derive(Module)]
struct Tied {
    encoder: Linear,
    decoder: Linear,
    first: Arc<Linear>,
    second: Arc<Linear>,
    boxed: Box<dyn Forward>,
    list: Vec<Linear>,
    norm: Option<BatchNorm1d>,
    scale: Var,
    #[skip]
    label: &'static str,
    mode: Mode,
    hooks: Hooks,
}

fn tied() -> Result<Tied> {
    let shared = Arc::new(Linear::new(2, 2)?);
    let mut m = Tied {
        encoder: Linear::new(3, 3)?,
        decoder: Linear::with(3, 3, LinearOptions::new().bias(false))?,
        first: shared.clone(),
        second: shared,
        boxed: Box::new(sequential![Linear::new(1, 2), Dropout::new(0.5)]?),
        list: vec![Linear::new(1, 1)?],
        norm: Some(BatchNorm1d::new(2)?),
        scale: Var::new(Tensor::from([1.0f32, 2.0]))?,
        label: "tied",
        mode: Mode::new(),
        hooks: Hooks::new(),
    };
    m.decoder.weight = m.encoder.weight.clone();
    Ok(m)
}

#[test]
fn copies_have_cells_of_their_own_and_share_what_was_shared() {
    let m = tied().unwrap();
    m.encoder.weight.requires_grad_(false).unwrap();
    m.boxed.eval();
    m.norm.as_ref().unwrap().freeze();
    m.register_full_backward_hook(|_, _| ()).unwrap();
    let drawn = next_number(&|| m.deep_copy().is_ok());
    assert_eq!(drawn, next_number(&|| true), "nothing is drawn");
    let copy = m.deep_copy().unwrap();
    assert_eq!((names(&copy), copy.label), (names(&m), "tied"));
    for (here, there) in m.named_parameters().iter().zip(copy.named_parameters()) {
        assert_eq!((&here.0, held(&here.1)), (&there.0, held(&there.1)));
        assert_ne!(here.1.id(), there.1.id());
        assert_eq!(
            here.1.requires_grad(),
            there.1.requires_grad(),
            "{}",
            here.0
        );
    }
    assert_eq!(copy.decoder.weight.id(), copy.encoder.weight.id());
    assert!(Arc::ptr_eq(&copy.first, &copy.second) && !Arc::ptr_eq(&copy.first, &m.first));
    assert!(copy.mode.is_training() && !copy.boxed.is_training());
    let norm = copy.norm.as_ref().unwrap();
    norm.train();
    assert!(!norm.is_training(), "frozen stays frozen");
    assert!(!copy.scale.is_parameter() && m.encoder.weight.is_parameter());
    // Changing one does not change the other.
    copy.list[0].weight.fill_(7.0).unwrap();
    assert_ne!(held(&m.list[0].weight), [7.0]);
    let halves = m.deep_copy_as(DType::F16).unwrap();
    assert_eq!(
        (halves.scale.dtype(), halves.encoder.weight.dtype()),
        (DType::F16, DType::F16)
    );
    let count = halves
        .norm
        .as_ref()
        .unwrap()
        .num_batches_tracked
        .as_ref()
        .unwrap();
    assert_eq!(count.dtype(), DType::I64);
    assert!(m.deep_copy_as(DType::I32).is_err());
}

#[test]
fn every_kind_of_module_is_copied() {
    let all: Vec<Box<dyn Forward>> = vec![
        Box::new(sequential!["a": Linear::new(2, 3), "f": |x: Tensor| x + 1.0].unwrap()),
        Box::new(Conv1d::new(2, 2, 1).unwrap()),
        Box::new(TransformerEncoderLayer::new(4, 2).unwrap()),
    ];
    let list = ModuleList(all);
    let copy = list.deep_copy().unwrap();
    assert_eq!(
        (names(&copy), copy.to_string()),
        (names(&list), list.to_string())
    );
    let lstm = LSTM::with(2, 3, Recurrent::new().num_layers(2)).unwrap();
    let copy = lstm.deep_copy().unwrap();
    let x = random([4, 1, 2]).to_dtype(DType::F32);
    assert_eq!(values(&copy.call(&x).0), values(&lstm.call(&x).0));
    let module: &dyn Module = &lstm;
    assert_eq!(
        module.deep_copy_boxed().unwrap().num_parameters(),
        lstm.num_parameters()
    );
    let loss = BCEWithLogitsLoss::new();
    assert_eq!(loss.deep_copy().unwrap().to_string(), "BCEWithLogitsLoss()");

    struct NotClone;
    #[derive(Module)]
    struct Own(Linear, #[skip] NotClone);
    let own = Own(Linear::new(1, 1).unwrap(), NotClone);
    let _ = &own.1;
    let e = own.deep_copy().err().unwrap();
    assert!(e.message().contains("the field 1 can't be cloned"), "{e}");
}

#[test]
fn errors_can_be_had_at_the_call() {
    let layer = Linear::new(3, 4).unwrap();
    assert_eq!(
        layer
            .try_call(Tensor::ones([2, 3], DType::F32))
            .unwrap()
            .shape()
            .unwrap(),
        [2, 4]
    );
    let wide = Tensor::ones([2, 5], DType::F32);
    let line = line!() + 1;
    let e = layer.try_call(wide).unwrap_err();
    assert_eq!(e.loc().line(), line, "{e}");
    // A result that can't carry an error needs `try_call`.
    #[derive(Module)]
    struct Halves(Linear);
    impl Forward<Tensor, Vec<Tensor>> for Halves {
        fn forward(&self, x: Tensor) -> Result<Vec<Tensor>> {
            let [_, width] = x.size()?;
            Ok(self.0.call(x).split(width / 2 + 1, 1))
        }
    }
    let halves = Halves(Linear::new(3, 4).unwrap());
    assert_eq!(
        halves
            .try_call(Tensor::ones([2, 3], DType::F32))
            .unwrap()
            .len(),
        2
    );
    let e = halves
        .try_call(Tensor::ones([2, 3, 1], DType::F32))
        .unwrap_err();
    assert!(e.to_string().contains("in Halves()"), "{e}");
    // A variable can replace a tensor.
    let v = Var::new(Tensor::ones([2, 3], DType::F32)).unwrap();
    assert_eq!(values(&layer.call(&v)), values(&layer.call(v.get())));
}

#[test]
fn losses_are_made_of_settings_that_make_sense() {
    #[track_caller]
    fn refused<L>(made: Result<L>, loss: &str, wanted: &str) {
        let e = made.err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Value);
        let text = e.to_string();
        let there = [loss, wanted, "making.rs"];
        assert!(there.iter().all(|part| text.contains(part)), "{text}");
    }
    let text = "label_smoothing must lie in 0..=1, not ";
    for smoothing in [-0.1, 1.5, f64::NAN] {
        let options = CrossEntropy::new().label_smoothing(smoothing);
        refused(CrossEntropyLoss::with(options), "CrossEntropyLoss", text);
    }
    let beta = SmoothL1Loss::with(SmoothL1::new().beta(-1.0));
    refused(beta, "SmoothL1Loss", "beta must not be negative, but is -1");
    let delta = HuberLoss::with(Huber::new().delta(0.0));
    refused(delta, "HuberLoss", "delta must be positive, but is 0");
    let p = MultiMarginLoss::with(MultiMargin::new().p(3));
    refused(p, "MultiMarginLoss", "p must be 1 or 2, not 3");
    let eps = GaussianNLLLoss::with(GaussianNll::new().eps(-1e-6));
    refused(eps, "GaussianNLLLoss", "eps must not be negative");
    let margin = TripletMarginLoss::with(TripletMargin::new().margin(0.0));
    refused(
        margin,
        "TripletMarginLoss",
        "the margin must be positive, but is 0",
    );
    let blank = CTCLoss::with(Ctc::new().blank(-1));
    refused(
        blank,
        "CTCLoss",
        "the blank must not be negative, but is -1",
    );
    assert!(MSELoss::with(Reduction::Sum).is_ok());
}
