//! Errors of wrong arguments.

use kiln_tensor::{DType, ErrorKind, Result, Tensor};
use kiln_tensorboard::*;

#[test]
fn wrong_arguments_are_errors_at_the_users_line() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let writer = SummaryWriter::new(folder.path())?;
    let x = Tensor::from([0.5f32, 1.0]);
    let matrix = x.reshape([1, 2]);
    let embedding = |options| writer.add_embedding_with(&matrix, 0, options);
    let errors = [
        (writer.add_scalar("x", &x, 0), "has 2 elements"),
        (
            writer.add_histogram("x", Tensor::zeros([0], DType::F32), 0),
            "values has no element",
        ),
        (
            writer.add_histogram("x", &x * f64::NAN, 0),
            "no element lies in a bin",
        ),
        (
            writer.add_histogram_with("x", &x, 0, Histogram::new().bins(Bins::Count(0))),
            "Bins::Count must be at least 1",
        ),
        (
            writer.add_histogram_with(
                "x",
                &x,
                0,
                Histogram::new().bins(Bins::Edges(vec![1.0, 0.0])),
            ),
            "ascending",
        ),
        (
            writer.add_histogram_raw(
                "x",
                RawHistogram {
                    bucket_limits: vec![1.0],
                    ..Default::default()
                },
                0,
            ),
            "1 limits and 0 counts",
        ),
        (
            writer.add_image("x", &x, 0),
            "the dims CHW are not those of an image of the shape [2]",
        ),
        (writer.add_image_with("x", &matrix, 0, "HH"), "the dims HH"),
        (
            writer.add_image("x", x.reshape([2, 1, 1]), 0),
            "1, 3 or 4 channels",
        ),
        (
            writer.add_figure(
                "x",
                Figure {
                    width: 1,
                    height: 1,
                    rgba: &[0],
                },
                0,
            ),
            "1 by 1 pixels of 4 bytes are not 1 bytes",
        ),
        (
            writer.add_pr_curve("x", &x, Tensor::from([2.0f32, 1.0]), 0),
            "between 0 and 1, not 2",
        ),
        (
            writer.add_pr_curve("x", &x, Tensor::from([1.0f32]), 0),
            "2 labels, 1 predictions",
        ),
        (
            writer.add_pr_curve_with("x", &x, &x, 0, PrCurve::new().num_thresholds(1usize)),
            "at least 2 thresholds",
        ),
        (
            writer.add_audio("x", Tensor::ones([2, 2], DType::F32), 0),
            "a sound has one channel",
        ),
        (writer.add_audio_with("x", &x, 0, 0), "0 samples a second"),
        #[cfg(feature = "video")]
        (
            writer.add_video("x", &matrix, 0),
            "the dims [n, t, c, h, w]",
        ),
        #[cfg(feature = "video")]
        (
            writer.add_video_with("x", matrix.reshape([1, 2, 1, 1, 1]), 0, 0.0),
            "a GIF can't have 0 frames a second",
        ),
        #[cfg(feature = "svg")]
        (writer.add_figure_svg("x", "<p/>", 0), "unknown token"),
        (writer.add_embedding(&x, 0), "points are a matrix"),
        (
            embedding(Embedding::new().metadata([vec!["a".into()], vec!["b".into()]])),
            "2 rows of metadata for 1 points",
        ),
        (
            embedding(Embedding::new().metadata([vec!["a\tb".to_string()]])),
            "a tab",
        ),
        (
            embedding(Embedding::new().label_img(Tensor::ones([2, 3, 1, 1], DType::F32))),
            "an image for each of 1 points",
        ),
    ];
    for (result, wanted) in errors {
        let e = result.expect_err(wanted);
        let text = e.to_string();
        assert!(
            text.contains(wanted) && text.contains("tests/tensorboard/errors.rs"),
            "{wanted} in {text}"
        );
    }
    std::fs::write(folder.path().join("file"), b"").unwrap();
    let e = SummaryWriter::new(folder.path().join("file/below"))
        .err()
        .expect("a file is not a folder");
    assert!(
        e.kind() == ErrorKind::Io && e.op() == "SummaryWriter::new",
        "{e}"
    );
    Ok(())
}
