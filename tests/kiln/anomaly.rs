//! Anomaly mode names the operation that produced the first NaN or infinity.

use crate::{matrix, vector};
use kiln::{
    Device, Error, ErrorKind, Tensor, Var, compile, detect_anomaly, is_anomaly_enabled, scan,
    set_detect_anomaly,
};

fn anomaly(found: Result<Vec<f32>, Error>) -> Error {
    let e = found.expect_err("an anomaly");
    assert_eq!(e.kind(), ErrorKind::Anomaly, "{e}");
    assert!(e.loc().file().ends_with("anomaly.rs"), "{e}");
    e
}

fn names_forward(device: Device) {
    let x = vector(&[1.0, 0.0, 4.0]).to(device);
    let y = &x + 1.0;
    let line = line!() + 1;
    let z = (&y - 1.0).log();
    let w = (&z * 2.0).sum(());
    let e = anomaly(detect_anomaly(|| w.to_vec::<f32>()));
    assert_eq!((e.op(), e.loc().line()), ("log", line), "{e}");
    assert_eq!(e.message(), "produced -inf at [1] of [3]");
    assert!(e.to_string().contains("an operand from 0 to 4"), "{e}");
    // Without the mode the program runs, and the same tensors can be read again.
    assert_eq!(w.to_vec::<f32>().unwrap(), [f32::NEG_INFINITY]);
}

#[test]
fn the_first_operation_is_named_with_its_line() {
    names_forward(Device::Cpu);
}

#[test]
fn the_first_operation_is_named_on_a_gpu() {
    if let Some(gpu) = crate::cuda::device() {
        names_forward(gpu);
    }
}

#[test]
fn a_derivative_is_named_by_the_line_it_is_of() {
    let x = vector(&[4.0, 0.0]).requires_grad_(true);
    let line = line!() + 1;
    let root = x.sqrt();
    let loss = (&root * 3.0).sum(());
    let backward = line!() + 1;
    loss.backward().unwrap();
    let gradient = x.grad().unwrap();
    let e = anomaly(detect_anomaly(|| gradient.to_vec::<f32>()));
    assert_eq!((e.op(), e.loc().line()), ("sqrt", line), "{e}");
    assert!(
        e.message().starts_with("its derivative produced inf"),
        "{e}"
    );
    let place = format!("recorded by backward at tests/kiln/anomaly.rs:{backward}");
    assert!(e.to_string().contains(&place), "{e}");
}

#[test]
fn optimised_programs_are_named_as_they_were_recorded() {
    // Both exponentials are one after optimisation; the first recorded is named.
    let x = vector(&[100.0]);
    let line = line!() + 1;
    let a = x.exp();
    let b = x.exp();
    let e = anomaly(detect_anomaly(|| (b + &a).to_vec::<f32>()));
    assert_eq!((e.op(), e.loc().line()), ("exp", line), "{e}");
    let (n, d) = (vector(&[0.0]), vector(&[0.0]));
    let line = line!() + 1;
    let q = &n / &d;
    let e = anomaly(detect_anomaly(|| (q.exp() * x.exp()).to_vec::<f32>()));
    assert_eq!((e.op(), e.loc().line()), ("div", line), "{e}");
    assert!(e.message().contains("produced NaN"), "{e}");
}

#[test]
fn compiled_functions_and_their_parameters_are_looked_at() {
    let weight = Var::new(vector(&[1.0, 2.0])).unwrap();
    let line = line!() + 2;
    let f = compile(&vector(&[1.0, 1.0]), |x| {
        let y = &x / &weight.get();
        weight.assign(&(weight.get() - 1.0)).unwrap();
        y.exp()
    });
    let f = f.unwrap();
    let x = vector(&[1.0, 1.0]);
    let run = || f.run(&x)?.to_vec::<f32>();
    detect_anomaly(run).unwrap();
    let e = anomaly(detect_anomaly(run));
    assert_eq!((e.op(), e.loc().line()), ("div", line), "{e}");
    // The run that failed has assigned nothing.
    assert_eq!(weight.get().to_vec::<f32>().unwrap(), [0.0, 1.0]);
    run().unwrap();
    assert_eq!(weight.get().to_vec::<f32>().unwrap(), [-1.0, 0.0]);
}

#[test]
fn what_was_there_or_is_stated_is_left_alone() {
    let given = vector(&[f32::NAN, f32::INFINITY, 1.0]);
    detect_anomaly(|| (&given * 2.0 + 1.0).to_vec::<f32>()).unwrap();
    // A mask of minus infinity, and the zeros that softmax turns it into.
    let scores = matrix(4, 4);
    let mask = Tensor::ones([4, 4], kiln::DType::Bool).triu_with(1);
    let masked = scores.masked_fill(&mask, f64::NEG_INFINITY);
    let soft = masked.softmax(1);
    detect_anomaly(|| soft.to_vec::<f32>()).unwrap();
    // A row that is masked completely is an anomaly of the softmax.
    let all = Tensor::ones([4, 4], kiln::DType::Bool);
    let line = line!() + 1;
    let soft = matrix(4, 4).masked_fill(&all, f64::NEG_INFINITY).softmax(1);
    let e = anomaly(detect_anomaly(|| soft.to_vec::<f32>()));
    assert_eq!((e.op(), e.loc().line()), ("softmax", line), "{e}");
    // Integers and empty tensors have none.
    detect_anomaly(|| Tensor::zeros([0], kiln::DType::F32).log().to_vec::<f32>()).unwrap();
    detect_anomaly(|| Tensor::from_slice(&[1i64, 2], [2]).square().to_vec::<i64>()).unwrap();
}

#[test]
fn narrow_types_overflow_where_they_are_cast() {
    for dtype in [kiln::DType::F16, kiln::DType::BF16] {
        let x = vector(&[1e3, 3.4e38]) * 1.0;
        let line = line!() + 1;
        let y = x.to_dtype(dtype);
        let e = anomaly(detect_anomaly(|| {
            y.to_dtype(kiln::DType::F32).to_vec::<f32>()
        }));
        assert_eq!(e.loc().line(), line, "{e}");
        assert!(e.message().ends_with("inf at [1] of [2]"), "{e}");
    }
}

#[test]
fn the_mode_ends_with_its_guard() {
    assert!(!is_anomaly_enabled());
    {
        let _on = set_detect_anomaly(true);
        assert!(is_anomaly_enabled());
        {
            let _off = set_detect_anomaly(false);
            assert!(!is_anomaly_enabled());
            vector(&[0.0]).log().to_vec::<f32>().unwrap();
        }
        assert!(is_anomaly_enabled());
        // Another thread has its own mode.
        assert!(!std::thread::spawn(is_anomaly_enabled).join().unwrap());
    }
    assert!(!is_anomaly_enabled());
    assert_eq!(detect_anomaly(|| 7), 7);
}

#[test]
fn data_errors_are_still_data_errors() {
    let e = detect_anomaly(|| {
        let index = Tensor::from_slice(&[9i64], [1]);
        matrix(3, 3).index_select(0, &index).to_vec::<f32>()
    });
    assert_eq!(e.unwrap_err().kind(), ErrorKind::Data);
}

fn names_what_is_in_a_loop(device: Device) {
    let (h, xs) = (vector(&[1.0, 2.0]), matrix(3, 2).abs() + 0.5);
    let (h, xs) = (h.to(device), xs.to(device));
    let (scanned, mut line) = (line!() + 1, 0);
    let (last, _) = scan(h, xs, |h, x| {
        line = line!() + 1;
        let y = (&h - &x * 100.0).log();
        (&y + 1.0, y)
    });
    let e = anomaly(detect_anomaly(|| last.exp().to_vec::<f32>()));
    assert_eq!((e.op(), e.loc().line()), ("log", line), "{e}");
    assert_eq!(e.message(), "produced NaN at [0] of [2]", "{e}");
    let place = format!("in step 0 of scan at tests/kiln/anomaly.rs:{scanned}");
    assert!(e.to_string().contains(&place), "{e}");

    // Only the last step divides by zero, in a loop inside the loop.
    let xs = vector(&[2.0, 1.0, 0.0]).to(device);
    let (last, _) = scan(vector(&[1.0]).to(device), xs, |h, x| {
        let (inner, _) = scan(h, vector(&[1.0, 1.0]).to(device), |h, one| {
            line = line!() + 1;
            let h = (&h + &one) / &x;
            (h.clone(), h)
        });
        (inner.clone(), inner)
    });
    let e = anomaly(detect_anomaly(|| last.to_vec::<f32>()));
    assert_eq!((e.op(), e.loc().line()), ("div", line), "{e}");
    assert_eq!(e.message(), "produced inf at [0] of [1]", "{e}");
}

#[test]
fn what_is_in_a_loop_is_named() {
    names_what_is_in_a_loop(Device::Cpu);
}

#[test]
fn what_is_in_a_loop_is_named_on_a_gpu() {
    if let Some(gpu) = crate::cuda::device() {
        names_what_is_in_a_loop(gpu);
    }
}
