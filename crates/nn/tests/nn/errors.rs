//! Errors where a layer and its input do not fit.

use kiln_nn::*;
use kiln_tensor::{AvgPool, DType, Error, Padding, Pool, Tensor};

fn zeros(shape: impl AsRef<[usize]>) -> Tensor {
    Tensor::zeros(shape.as_ref(), DType::F32)
}

/// The error that a tensor carries, which must point to a line of this file.
#[track_caller]
fn text(y: &Tensor, line: u32) -> String {
    let e = y.error().expect("an error");
    assert!(e.loc().file().ends_with("errors.rs"), "{e}");
    assert_eq!(e.loc().line(), line, "{e}");
    e.to_string()
}

#[test]
fn a_wrong_input_names_the_layer_both_shapes_and_the_line() {
    let layer = Linear::new(3, 4).unwrap();
    let line = line!() + 1;
    let y = layer.call(zeros([2, 5]));
    let text = text(&y, line);
    for part in [
        "f32[2, 5]",
        "f32[4, 3]",
        "Linear(in_features=3, out_features=4, bias=True)",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn a_wrong_dtype_names_both() {
    let layer = Conv2d::new(1, 2, 3).unwrap();
    let line = line!() + 1;
    let y = layer.call(Tensor::zeros([1, 1, 5, 5], DType::F64));
    let text = text(&y, line);
    assert!(
        text.contains("input is f64") && text.contains("weight is f32"),
        "{text}"
    );
    assert!(
        text.contains("in Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))"),
        "{text}"
    );
}

#[test]
fn a_container_names_the_layer_and_the_line_that_called_it() {
    let inner = Sequential::new()
        .add(ReLU::new())
        .named("fc", Linear::new(3, 4).unwrap());
    let model = Sequential::new().named("block", inner).add(ReLU::new());
    let line = line!() + 1;
    let y = model.call(zeros([2, 5]));
    let text = text(&y, line);
    for part in [
        "Linear(in_features=3",
        "layer fc of Sequential",
        "layer block of Sequential",
    ] {
        assert_eq!(text.matches(part).count(), 1, "{part:?} in\n{text}");
    }
}

#[test]
fn a_model_of_ones_own_in_a_container_is_named_by_its_own_line() {
    const LINE: u32 = line!() + 5;
    #[derive(Module)]
    struct Own(Linear);
    impl Forward for Own {
        fn forward(&self, x: Tensor) -> Result<Tensor> {
            Ok(self.0.call(x))
        }
    }
    let model = Sequential::new().add(Own(Linear::new(3, 4).unwrap()));
    let y = model.call(zeros([2, 5]));
    let text = text(&y, LINE);
    assert!(text.contains("layer 0 of Sequential"), "{text}");
}

#[test]
fn an_error_from_before_a_layer_is_not_the_layers() {
    let bad = zeros([2]).reshape([3]);
    let layer = Linear::new(3, 4).unwrap();
    let e = layer.call(&bad).error().unwrap().to_string();
    assert!(e.contains("reshape") && !e.contains("Linear"), "{e}");
}

#[test]
fn a_bad_index_names_the_line_of_the_layer() {
    let model = Sequential::new().add(Embedding::new(3, 2).unwrap());
    let line = line!() + 1;
    let y = model.call(Tensor::from_slice(&[1i64, 3], [2]));
    let e = y.to_vec::<f32>().unwrap_err();
    assert!(e.loc().file().ends_with("errors.rs"), "{e}");
    assert_eq!(e.loc().line(), line, "{e}");
}

#[test]
fn norms_name_ranks_and_channels_that_do_not_fit() {
    let norm = BatchNorm2d::new(3).unwrap();
    let line = line!() + 1;
    let y = norm.call(zeros([2, 3]));
    assert!(text(&y, line).contains("BatchNorm2d: takes no input of 2 dims, such as f32[2, 3]"));
    let line = line!() + 1;
    let y = norm.call(zeros([2, 4, 1, 1]));
    assert!(text(&y, line).contains("expects 3 channels, not f32[2, 4, 1, 1]"));
    let count = norm.num_batches_tracked.as_ref().unwrap().get();
    assert_eq!(count.item::<i64>().unwrap(), 0, "an error updates nothing");
    let line = line!() + 1;
    let y = norm.call(zeros([1, 3, 1, 1]));
    assert!(text(&y, line).contains("one value per channel"));
    let count = norm.num_batches_tracked.as_ref().unwrap().get();
    assert_eq!(count.item::<i64>().unwrap(), 0);
    let groups = GroupNorm::new(2, 4).unwrap();
    let line = line!() + 1;
    let y = groups.call(zeros([2, 6, 3]));
    assert!(text(&y, line).contains("expects 4 channels, not f32[2, 6, 3]"));
    let line = line!() + 1;
    let y = Dropout2d::new(0.5).unwrap().call(zeros([3]));
    let text_of_rank_1 = text(&y, line);
    assert!(text_of_rank_1.contains("dropout2d: needs at least 2 dims"));
    assert!(text_of_rank_1.contains("in Dropout2d(p=0.5)"));
    let line = line!() + 1;
    let y = Embedding::new(3, 2).unwrap().call(zeros([3]));
    assert!(text(&y, line).contains("the indices must be integers, not f32[3]"));
}

#[test]
fn impossible_sizes_name_the_layer_and_the_line() {
    #[track_caller]
    fn check(e: Option<Error>, line: u32, parts: &[&str]) {
        let e = e.expect("an error");
        assert_eq!(
            (e.loc().file().ends_with("errors.rs"), e.loc().line()),
            (true, line),
            "{e}"
        );
        for part in parts {
            assert!(e.to_string().contains(part), "{part:?} is not in\n{e}");
        }
    }
    let line = line!() + 1;
    let e = Conv2d::new(3, 4, Kernel::new(3).groups(2)).err();
    check(
        e,
        line,
        &["Conv2d", "3 input and 4 output channels", "2 groups"],
    );
    let line = line!() + 1;
    let e = Conv1d::new(3, 4, [3, 3]).err();
    check(e, line, &["Conv1d", "kernel size", "[3, 3]"]);
    let line = line!() + 1;
    let e = ConvTranspose3d::new(3, 4, 0).err();
    check(e, line, &["ConvTranspose3d", "at least 1, not 0"]);
    let line = line!() + 1;
    let e = Dropout::new(1.5).err();
    check(e, line, &["Dropout", "0..=1, not 1.5"]);
    let line = line!() + 1;
    let e = LSTM::with(3, 4, Recurrent::new().dropout(-0.5)).err();
    check(e, line, &["LSTM", "0..=1, not -0.5"]);
    let line = line!() + 1;
    let e = MaxPool2d::new(0).err();
    check(e, line, &["MaxPool2d", "kernel size", "at least 1, not 0"]);
    let line = line!() + 1;
    let e = MaxPool2d::new(Pool::new(3).padding(2)).err();
    check(
        e,
        line,
        &["MaxPool2d", "at most half the kernel size 3, not 2"],
    );
    let line = line!() + 1;
    let e = AvgPool1d::new(AvgPool::new(3).divisor_override(0)).err();
    check(e, line, &["AvgPool1d", "divisor"]);
    let line = line!() + 1;
    let e = AdaptiveAvgPool2d::new([1, 2, 3]).err();
    check(e, line, &["AdaptiveAvgPool2d"]);
    let line = line!() + 1;
    let e = Conv2d::new(3, 4, Kernel::new(3).stride(2).padding(Padding::Same)).err();
    check(e, line, &["Conv2d", "strides of 1"]);
    let line = line!() + 1;
    let e = ConvTranspose2d::new(3, 4, TransposedKernel::new(3).output_padding(1)).err();
    check(e, line, &["ConvTranspose2d", "output padding"]);
    let line = line!() + 1;
    let e = ZeroPad2d::new([1, 2, 3]).err();
    check(e, line, &["ZeroPad2d", "one number or 4"]);
    let line = line!() + 1;
    let e = PixelShuffle::new(0).err();
    check(e, line, &["PixelShuffle", "upscale_factor", "not 0"]);
    let line = line!() + 1;
    let e = Fold::new([2, 2], 3).err();
    check(e, line, &["Fold"]);
    let line = line!() + 1;
    let e = sequential![Linear::new(2, 3), Dropout::new(2.0), ReLU::new()].err();
    check(e, line, &["Dropout", "0..=1, not 2"]);
    let line = line!() + 1;
    let e = GroupNorm::new(2, 5).err();
    check(e, line, &["GroupNorm", "5 channels", "2 groups"]);
    let line = line!() + 1;
    let e = LayerNorm::new(()).err();
    check(e, line, &["LayerNorm", "normalized shape"]);
    let line = line!() + 1;
    let e = Bilinear::new(0, 1, 1).err();
    check(e, line, &["Bilinear", "in1_features"]);
    let line = line!() + 1;
    let e = Embedding::with(3, 1, Rows::new().padding_idx(3)).err();
    check(e, line, &["Embedding", "no row 3 of 3"]);
    let options = TransformerOptions::new().dim_feedforward(0);
    let line = line!() + 1;
    let e = TransformerEncoderLayer::with(4, 2, options).err();
    check(e, line, &["TransformerEncoderLayer", "dim_feedforward"]);
    let line = line!() + 1;
    let e = Embedding::from_pretrained(zeros([3])).err();
    check(e, line, &["Embedding", "f32[3]"]);
}

#[test]
fn errors_of_settings_show_the_line_of_the_caller() {
    use kiln_nn::amp::{Initialize, OptLevel, initialize};
    let mut model = Sequential::new().add(ReLU::new());
    let waiting = LazyLinear::new(3).unwrap();
    let f32_half = Initialize::new(OptLevel::O1).half(DType::F32);
    let line = line!() + 1;
    let errors = [
        model.replace("last", ReLU::new()).unwrap_err(),
        waiting.get().err().unwrap(),
        initialize(&model, &mut [], f32_half).err().unwrap(),
    ];
    for (e, line) in errors.iter().zip(line + 1..) {
        assert!(e.loc().file().ends_with("errors.rs"), "{e}");
        assert_eq!(e.loc().line(), line, "{e}");
    }
}

#[test]
fn absurd_numbers_are_refused_with_the_limit() {
    let layer = TransformerEncoderLayer::new(4, 2).unwrap();
    let more = TransformerDecoderLayer::new(4, 2).unwrap();
    for n in [1i64 << 40, 1 << 62, i64::MAX] {
        let deep = || Recurrent::new().num_layers(n);
        for e in [
            LSTM::with(1, 4, deep()).err(),
            GRU::with(1, 4, deep()).err(),
            RNN::with(1, 4, deep()).err(),
            TransformerEncoder::new(&layer, n).err(),
            TransformerDecoder::new(&more, n).err(),
            Transformer::of(&layer, 1, &more, n).err(),
        ] {
            let e = e.unwrap().to_string();
            assert!(e.contains("at most"), "{e}");
        }
        assert!(Fold::new(n, 2).is_err());
        let lbfgs = optim::LBFGS::new().max_iter(n);
        assert!(optim::Optimizer::new(layer.parameters(), lbfgs).is_ok());
    }
    for n in [1i64 << 62, i64::MAX] {
        for e in [Linear::new(n, 4).err(), Linear::new(4, n).err()] {
            let e = e.unwrap().to_string();
            assert!(e.contains("at most 1099511627776"), "{e}");
        }
        assert!(LSTM::new(n, n).is_err() && MultiheadAttention::new(n, 2).is_err());
    }
}
