//! Losses of several inputs, distances, further dropouts, initialisers and containers.

use crate::support::*;
use kiln_nn::*;
use kiln_tensor::{
    BagMode, BinaryCrossEntropy, BinaryCrossEntropyWithLogits, CrossEntropy, DType, GradCheck,
    MarginRanking, MultiLabelSoftMargin, MultiMargin, Nll, Pairwise, Tensor, TripletMargin, Var,
    gradcheck_with, manual_seed,
};

fn f64s(values: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape)
}

#[track_caller]
fn near(found: &Tensor, wanted: &[f64]) {
    assert_close(&values(found), wanted, 1e-10);
}

#[test]
fn losses_by_their_formulas() {
    let (x, y) = (f64s(&[0.5, -1.5], &[2]), f64s(&[1.0, -1.0], &[2]));
    near(
        &HingeEmbeddingLoss::new().call((&x, &y)),
        &[(0.5 + 2.5) / 2.0],
    );
    let soft = ((-0.5f64).exp().ln_1p() + (-1.5f64).exp().ln_1p()) / 2.0;
    near(&SoftMarginLoss::new().call((&x, &y)), &[soft]);
    let rate = (0.5f64.exp() - 2.0 * 0.5 + (-1.5f64).exp() - 3.0 * -1.5) / 2.0;
    let counts = f64s(&[2.0, 3.0], &[2]);
    near(&PoissonNLLLoss::new().call((&x, &counts)), &[rate]);
    let var = f64s(&[2.0, 0.5], &[2]);
    let gauss = 0.5 * (2f64.ln() + 0.25 / 2.0 + 0.5f64.ln() + 0.25 / 0.5) / 2.0;
    near(&GaussianNLLLoss::new().call((&x, &y, &var)), &[gauss]);
    let ranking = MarginRankingLoss::with(MarginRanking::new().margin(0.25)).unwrap();
    // max(0, −t (a − b) + margin): −0.5 · −1 … by hand for both pairs.
    near(
        &ranking.call((&x, &f64s(&[1.0, -1.0], &[2]), &y)),
        &[(0.75 + 0.0) / 2.0],
    );

    let (a, b) = (f64s(&[3.0, 4.0], &[1, 2]), f64s(&[4.0, 3.0], &[1, 2]));
    let same = f64s(&[1.0], &[1]);
    near(
        &CosineEmbeddingLoss::new().call((&a, &b, &same)),
        &[1.0 - 24.0 / 25.0],
    );
    near(
        &CosineEmbeddingLoss::new().call((&a, &b, &(&same * -1.0))),
        &[24.0 / 25.0],
    );
    let c = f64s(&[3.0, 2.0], &[1, 2]);
    let triplet = TripletMarginLoss::with(TripletMargin::new().eps(0.0)).unwrap();
    near(&triplet.call((&a, &b, &c)), &[2f64.sqrt() - 2.0 + 1.0]);

    let scores = f64s(&[0.1, 0.2, 0.4, 0.8], &[1, 4]);
    let one = Tensor::from_slice(&[3i64], [1]);
    near(
        &MultiMarginLoss::new().call((&scores, &one)),
        &[(0.3 + 0.4 + 0.6) / 4.0],
    );
    let several = Tensor::from_slice(&[3i64, 0, -1, 1], [1, 4]);
    near(
        &MultiLabelMarginLoss::new().call((&scores, &several)),
        &[0.85],
    );
    let targets = f64s(&[1.0, 0.0, 0.0, 1.0], &[1, 4]);
    let log = |x: f64| -(-x).exp().ln_1p();
    let soft = -(log(0.1) + log(-0.2) + log(-0.4) + log(0.8)) / 4.0;
    near(
        &MultiLabelSoftMarginLoss::new().call((&scores, &targets)),
        &[soft],
    );

    let (x, y, z) = (random([3, 4]), random([3, 4]), random([3, 4]));
    let bounds = || GradCheck::new().atol(1e-7).rtol(1e-5);
    let three = |[x, y, z]: [Tensor; 3]| TripletMarginLoss::new().call((&x, &y, &z));
    gradcheck_with(three, [&x, &y, &z], bounds()).unwrap();
    let gauss = |[x, y, z]: [Tensor; 3]| GaussianNLLLoss::new().call((&x, &y, &z.square()));
    gradcheck_with(gauss, [&x, &y, &(&z + 2.0)], bounds()).unwrap();
    let cosine = |[x, y]: [Tensor; 2]| CosineSimilarity::new().call((&x, &y));
    gradcheck_with(cosine, [&x, &y], bounds()).unwrap();
    let e = MarginRankingLoss::new().call((&x, &random([5]), &y));
    let text = e.error().unwrap().to_string();
    assert!(
        text.contains("more.rs") && text.contains("in MarginRankingLoss"),
        "{text}"
    );
}

#[test]
fn a_target_beside_its_input_does_not_become_a_matrix() {
    let (x, t) = (random([4, 1]), random([4]));
    let of = [
        MSELoss::new().call((&x, &t)),
        L1Loss::new().call((&t, &x)),
        SmoothL1Loss::new().call((&x, &t)),
        HuberLoss::new().call((&x, &t)),
    ];
    for loss in of {
        let text = loss.error().unwrap().to_string();
        assert!(
            text.contains("must have one shape") && text.contains("more.rs"),
            "{text}"
        );
    }
    // Broadcasting only one of them is allowed.
    let column = MSELoss::new().call((&random([4, 3]), &x));
    assert!(column.check().is_ok());
    assert!(
        MSELoss::new()
            .call((&x, &Tensor::scalar(0.5)))
            .check()
            .is_ok()
    );
}

#[test]
fn optimisers_take_parameters() {
    use kiln_nn::optim::{Optimizer, SGD};
    let none: [&Var; 0] = [];
    let buffer = Var::new(Tensor::zeros([2], DType::F32)).unwrap();
    let empty = Optimizer::new(none, SGD::new()).err().unwrap();
    assert!(empty.message().contains("no parameters"), "{empty}");
    let wrong = Optimizer::new([&buffer], SGD::new()).err().unwrap();
    assert!(wrong.message().contains("is not a parameter"), "{wrong}");
    let frozen = Var::parameter(Tensor::zeros([2], DType::F32)).unwrap();
    frozen.requires_grad_(false).unwrap();
    assert!(Optimizer::new([&frozen], SGD::new()).is_ok());
}

#[test]
fn distances_and_other_layers_without_parameters() {
    let (a, b) = (
        f64s(&[3.0, 4.0, 1.0, 0.0], &[2, 2]),
        f64s(&[4.0, 3.0, 0.0, 2.0], &[2, 2]),
    );
    near(&CosineSimilarity::new().call((&a, &b)), &[24.0 / 25.0, 0.0]);
    let distance = PairwiseDistance::with(Pairwise::new().eps(0.0));
    near(&distance.call((&a, &b)), &[2f64.sqrt(), 5f64.sqrt()]);

    let x = random([2, 3, 4, 5]);
    let y = Softmax2d::new().call(&x);
    near(&y.sum(1), &[1.0; 40]);
    near(&y, &values(&x.softmax(1)));
    near(&Softmax2d::new().call(x.i(0)), &values(&y.i(0)));
    assert!(Softmax2d::new().call(x.i((0, 0))).error().is_some());
    let norm = LocalResponseNorm::new(3).unwrap();
    near(&norm.call(&x), &values(&x.local_response_norm(3)));

    let bag = f64_module(|| EmbeddingBag::with(5, 2, BagMode::Sum));
    let rows = bag.weight.get().detach();
    let indices = Tensor::from_slice(&[0i64, 2, 2, 4], [4]);
    let wanted = cat_rows(&[&(rows.i(0) + rows.i(2)), &(rows.i(2) + rows.i(4))]);
    near(&bag.call(indices.reshape([2, 2])), &wanted);
    let offsets = Tensor::from_slice(&[0i64, 2], [2]);
    near(&bag.call((&indices, &offsets)), &wanted);
    check_gradients(&bag, &|| bag.call(indices.reshape([2, 2])));
    assert_eq!(bag.to_string(), "EmbeddingBag(5, 2, mode='sum')");
}

fn cat_rows(rows: &[&Tensor]) -> Vec<f64> {
    rows.iter().flat_map(|r| values(r)).collect()
}

#[test]
fn alpha_dropout_keeps_mean_and_variance() {
    manual_seed(3);
    let x = Tensor::randn([200_000], DType::F64);
    for p in [0.1, 0.5] {
        let layer = AlphaDropout::new(p).unwrap();
        let y = layer.call(&x);
        assert!(y.mean(()).item::<f64>().unwrap().abs() < 0.02);
        let variance = y.var(()).item::<f64>().unwrap();
        assert!((variance - 1.0).abs() < 0.03, "{variance}");
        let limit = 1.758_099_340_847_376_6f64;
        let a = ((limit * limit * p + 1.0) * (1.0 - p)).powf(-0.5);
        let dropped = a * limit * (p - 1.0);
        let (mut zeros, pairs) = (0, values(&x).into_iter().zip(values(&y)));
        for (x, y) in pairs {
            match (y - dropped).abs() < 1e-12 {
                true => zeros += 1,
                false => assert!((y - (a * x + a * limit * p)).abs() < 1e-12),
            }
        }
        assert!((zeros as f64 / 200_000.0 - p).abs() < 0.01);
        layer.eval();
        assert_eq!(values(&layer.call(&x)), values(&x));
    }
    let x = Tensor::randn([50, 4, 6], DType::F64);
    let y = values(&FeatureAlphaDropout::new(0.5).unwrap().call(&x));
    let scale = |i: usize| y[i] - y[i - 1]; // 0 in a dropped channel
    let whole = |c: usize| (1..6).all(|i| scale(c * 6 + i) == 0.0);
    let none = |c: usize| (1..6).all(|i| scale(c * 6 + i) != 0.0);
    assert!((0..200).all(|c| whole(c) || none(c)));
    assert!((0..200).any(whole) && (0..200).any(none));
    near(&AlphaDropout::new(1.0).unwrap().call(&x), &[0.0; 1200]);
    assert!(AlphaDropout::new(1.5).is_err());
}

#[test]
fn further_initialisers() {
    for (shape, rows, columns) in [([3, 5, 1], 3, 5), ([7, 2, 2], 7, 4), ([4, 2, 2], 4, 4)] {
        let w = Var::parameter(Tensor::zeros(shape, DType::F64)).unwrap();
        init::orthogonal_(&w, 2.0).unwrap();
        let m = w.get().detach().reshape([rows, columns]);
        let (n, gram) = match rows <= columns {
            true => (rows, m.matmul(m.t())),
            false => (columns, m.t().matmul(&m)),
        };
        near(&gram, &values(&(Tensor::eye((n, n), DType::F64) * 4.0)));
    }
    let w = Var::parameter(Tensor::zeros([50, 20], DType::F32)).unwrap();
    init::sparse_(&w, 0.33, 0.5).unwrap();
    let zeros = w.get().eq(0.0).sum([0]).to_vec::<i64>().unwrap();
    assert_eq!(zeros, [17; 20]); // ⌈0.33 · 50⌉ in each column
    let std = w.get().square().mean(()).item::<f32>().unwrap();
    assert!((std - 0.25 * 33.0 / 50.0).abs() < 0.03, "{std}");
    for wrong in [
        init::sparse_(&w, 1.5, 1.0),
        init::orthogonal_(&Var::new(Tensor::zeros([3], DType::F32)).unwrap(), 1.0),
    ] {
        assert!(wrong.unwrap_err().loc().to_string().contains("more.rs"));
    }
}

#[test]
fn modules_by_name() {
    let mut heads = ModuleDict::new();
    heads.insert("digits", Linear::new(3, 10).unwrap());
    heads.insert("sign", Linear::new(3, 2).unwrap());
    heads.insert("sign", Linear::new(3, 1).unwrap());
    let wanted = ["digits.weight", "digits.bias", "sign.weight", "sign.bias"];
    assert_eq!(names(&heads), wanted);
    let x = Tensor::ones([2, 3], DType::F32);
    assert_eq!(heads.get("sign").unwrap().call(&x).shape().unwrap(), [2, 1]);
    assert!(heads.get("other").is_none());
    let text = heads.to_string();
    assert!(
        text.starts_with("ModuleDict(\n  (digits): Linear("),
        "{text}"
    );
    let keys: Vec<&str> = heads.iter().map(|(name, _)| name).collect();
    assert_eq!(keys, ["digits", "sign"]);
}

#[test]
fn a_transformer_is_its_encoder_and_decoder() {
    let model = f64_module(|| {
        let encoder = TransformerEncoderLayer::with(
            4,
            2,
            TransformerOptions::new().dim_feedforward(6).dropout(0.0),
        )?;
        let decoder = TransformerDecoderLayer::with(
            4,
            2,
            TransformerOptions::new().dim_feedforward(6).dropout(0.0),
        )?;
        Transformer::of(&encoder, 2, &decoder, 1)
    });
    let all = names(&model);
    assert!(all.contains(&"encoder.layers.1.self_attn.in_proj_weight".to_string()));
    assert!(all.contains(&"decoder.norm.weight".to_string()));
    // Copies have values of their own, biases stay, and no matrix leaves Glorot's range.
    let weights = model.state_dict();
    let matrix = |name: &str| values(weights.get(name).unwrap());
    let (first, second) = (
        matrix("encoder.layers.0.linear1.weight"),
        matrix("encoder.layers.1.linear1.weight"),
    );
    assert_ne!(first, second);
    assert!(first.iter().all(|w| w.abs() <= (6.0f64 / 10.0).sqrt()));

    let (src, tgt) = (random([3, 2, 4]), random([5, 2, 4]));
    let causal = Transformer::generate_square_subsequent_mask(5);
    let row: Vec<f32> = causal.i(1).to_vec().unwrap();
    assert_eq!(
        row,
        [
            0.0,
            0.0,
            f32::NEG_INFINITY,
            f32::NEG_INFINITY,
            f32::NEG_INFINITY
        ]
    );
    let causal = causal.to_dtype(DType::F64);
    let masks = || {
        let none = AttentionMasks::new();
        [none.clone(), none.clone().attn_mask(&causal), none]
    };
    let y = model.call((&src, &tgt, masks()));
    let memory = model.encoder.call(&src);
    near(
        &y,
        &values(
            &model
                .decoder
                .call((&tgt, &memory, AttentionMasks::new().attn_mask(&causal))),
        ),
    );
    // Later positions are not seen.
    let changed = tgt.set(4.., 0.0);
    let z = model.call((&src, &changed, masks()));
    near(&z.i(..4), &values(&y.i(..4)));
    check_gradients(&model, &|| model.call((&src, &tgt)));
    let defaults = Transformer::new(8, 2).unwrap();
    assert_eq!(
        defaults.encoder.layers.len() + defaults.decoder.layers.len(),
        12
    );
    assert!(Transformer::new(7, 2).is_err());
}

/// Returns the number of leading dims for which a dropout of ones draws separately; `None` if it refuses the input.
fn decides_for(layer: &dyn Fn(&Tensor) -> Tensor, rank: usize) -> Option<usize> {
    let shape = [24, 25, 3, 4, 2, 3];
    let y = layer(&Tensor::ones(&shape[..rank], DType::F32));
    y.error().is_none().then_some(())?;
    let y = y.to_vec::<f32>().unwrap();
    // The smallest number of leading dims under which all elements are equal.
    let alike = |own: &usize| {
        let each: usize = shape[*own..rank].iter().product();
        y.chunks(each)
            .all(|chunk| chunk.iter().all(|v| *v == chunk[0]))
    };
    (0..=rank).find(alike)
}

#[test]
fn dropouts_take_pytorchs_ranks_and_drop_what_pytorch_drops() {
    type Layer = Box<dyn Fn(&Tensor) -> Tensor>;
    fn both(layer: impl Forward, function: fn(&Tensor, f64, bool) -> Tensor) -> [Layer; 2] {
        [
            Box::new(move |x| layer.call(x)),
            Box::new(move |x| function(x, 0.5, true)),
        ]
    }
    let (no, p) = (None, 0.5);
    // The ranks start at 0.
    let table = [
        (
            both(Dropout1d::new(p).unwrap(), Tensor::dropout1d_with),
            [no, no, Some(1), Some(2), no, no, no],
        ),
        (
            both(Dropout2d::new(p).unwrap(), Tensor::dropout2d_with),
            [no, no, Some(2), Some(2), Some(2), Some(2), Some(2)],
        ),
        (
            both(Dropout3d::new(p).unwrap(), Tensor::dropout3d_with),
            [no, Some(1), Some(1), Some(1), Some(1), Some(2), Some(1)],
        ),
        (
            both(
                FeatureAlphaDropout::new(p).unwrap(),
                Tensor::feature_alpha_dropout_with,
            ),
            [no, no, Some(2), Some(2), Some(2), Some(2), Some(2)],
        ),
        (
            both(AlphaDropout::new(p).unwrap(), Tensor::alpha_dropout_with),
            [
                Some(0),
                Some(1),
                Some(2),
                Some(3),
                Some(4),
                Some(5),
                Some(6),
            ],
        ),
    ];
    kiln_tensor::with_seed(3, || {
        for (at, (layers, wanted)) in table.iter().enumerate() {
            for layer in layers {
                let found: Vec<_> = (0..7).map(|rank| decides_for(layer, rank)).collect();
                assert_eq!(found, wanted, "row {at}");
            }
        }
    });
}

#[test]
fn dropouts_check_the_probability_in_evaluation_too() {
    let x = Tensor::ones([2, 3, 4, 5], DType::F32);
    let all = [
        Tensor::dropout_with,
        Tensor::dropout2d_with,
        Tensor::dropout3d_with,
        Tensor::alpha_dropout_with,
        Tensor::feature_alpha_dropout_with,
    ];
    for f in all {
        for p in [-0.1, 1.1, f64::NAN] {
            assert!(f(&x, p, false).error().is_some() && f(&x, p, true).error().is_some());
        }
        let whole = x.to_dtype(DType::I64);
        assert!(f(&whole, 0.5, true).error().is_some());
        assert_eq!(f(&whole, 0.5, false).to_vec::<i64>().unwrap(), [1; 120]);
    }
}

#[test]
fn the_weights_of_losses_are_buffers() {
    let numbers = |n: usize| Tensor::rand([n], DType::F64);
    let names = |m: &dyn Module| -> Vec<String> {
        m.named_buffers()
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    };
    let plain = CrossEntropyLoss::new();
    assert!(names(&plain).is_empty());
    let weight = &numbers(3);
    let classes: [Box<dyn Module>; 4] = [
        Box::new(CrossEntropyLoss::with(CrossEntropy::new().weight(weight)).unwrap()),
        Box::new(NLLLoss::with(Nll::new().weight(weight)).unwrap()),
        Box::new(MultiMarginLoss::with(MultiMargin::new().weight(weight)).unwrap()),
        Box::new(
            MultiLabelSoftMarginLoss::with(MultiLabelSoftMargin::new().weight(weight)).unwrap(),
        ),
    ];
    for loss in &classes {
        assert_eq!(names(&**loss), ["weight"], "{}", loss.name());
        assert_eq!(loss.extra_repr(), "");
        assert!(loss.parameters().is_empty());
    }
    let bce = BCELoss::with(BinaryCrossEntropy::new().weight(weight)).unwrap();
    assert_eq!(names(&bce), ["weight"]);
    let broken = Tensor::zeros([2], DType::F64).reshape([3]);
    let refused = NLLLoss::with(Nll::new().weight(&broken)).unwrap_err();
    assert!(refused.message().contains("reshape") || refused.to_string().contains("reshape"));
    let options = BinaryCrossEntropyWithLogits::new()
        .weight(weight)
        .pos_weight(numbers(3));
    let logits = BCEWithLogitsLoss::with(options).unwrap();
    assert_eq!(names(&logits), ["weight", "pos_weight"]);
    let (x, y) = (random([4, 3]), random([4, 3]).sigmoid());
    let [w, p] = &logits.buffers()[..] else {
        unreachable!("two names")
    };
    let wanted = x.binary_cross_entropy_with_logits_with(
        &y,
        BinaryCrossEntropyWithLogits::new()
            .weight(w.get())
            .pos_weight(p.get()),
    );
    near(&logits.call((&x, &y)), &values(&wanted));
}
