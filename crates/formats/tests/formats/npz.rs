use crate::message;
use kiln_data::Rng;
use kiln_formats::{read_npz, write_npz, write_npz_compressed};
use kiln_tensor::{DType, Result, Tensor};

#[test]
fn tensors_survive_by_name() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let image = Tensor::zeros([40, 50], DType::F32);
    let (labels, scalar) = (
        Tensor::from([1u8, 2, 255]),
        Tensor::scalar(half::f16::from_f32(0.5)),
    );
    let tensors = [
        ("images/train", &image),
        ("labels", &labels),
        ("é", &scalar),
    ];
    let (stored, packed) = (
        folder.path().join("stored.npz"),
        folder.path().join("packed.npz"),
    );
    write_npz(&stored, tensors)?;
    write_npz_compressed(&packed, tensors)?;
    for path in [&stored, &packed] {
        let read = read_npz(path)?;
        assert_eq!(read.len(), 3);
        for (name, want) in tensors {
            assert_eq!(
                (read[name].dtype(), read[name].shape()?),
                (want.dtype(), want.shape()?)
            );
            assert_eq!(read[name].to_bytes()?, want.to_bytes()?);
        }
        // The tensors that were read are written again.
        write_npz(&stored, read)?;
    }
    let size = |path| std::fs::metadata(path).unwrap().len();
    assert!(size(&stored) > 8000 && size(&packed) < 2000);
    let first = std::fs::read(&packed).unwrap();
    write_npz_compressed(&packed, tensors)?;
    assert!(
        std::fs::read(&packed).unwrap() == first,
        "the same tensors give the same bytes"
    );
    Ok(())
}

#[test]
fn damage_names_the_member() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    let twice = [("x", Tensor::from([1i64])), ("x", Tensor::from([2i64]))];
    let found = message(write_npz(&path, twice));
    assert!(found.contains("x.npy"), "{found}");
    assert!(crate::names(&folder).is_empty(), "nothing is left behind");
    // Two members of one name, of which only one could be given.
    write_npz(
        &path,
        [("x", Tensor::from([1i64])), ("y", Tensor::from([2i64]))],
    )?;
    let mut two = std::fs::read(&path).unwrap();
    for at in 0..two.len() - 5 {
        if &two[at..at + 5] == b"y.npy" {
            two[at] = b'x';
        }
    }
    std::fs::write(&path, &two).unwrap();
    let found = message(read_npz(&path));
    assert!(
        found.contains("two members are called \"x.npy\""),
        "{found}"
    );
    write_npz(&path, [("x", Tensor::arange(0, 100, 1))])?;
    let good = std::fs::read(&path).unwrap();

    let mut damaged = good.clone();
    damaged[400] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let found = message(read_npz(&path));
    assert!(found.contains("x.npz: x.npy: "), "{found}");
    std::fs::write(&path, b"\x93NUMPY").unwrap();
    assert!(message(read_npz(&path)).contains("x.npz: "));
    assert!(message(read_npz(folder.path().join("y.npz"))).contains("y.npz: "));

    let mut rng = Rng::new(5);
    for _ in 0..500 {
        let mut bytes = good.clone();
        match rng.below(3) {
            0 => bytes.truncate(rng.below(good.len())),
            _ => {
                let at = rng.below(good.len());
                bytes[at] = rng.bits() as u8;
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        // No panic; whatever is still read has the values that were written.
        if let Ok(read) = read_npz(&path) {
            for x in read.values() {
                assert_eq!(x.to_vec::<i64>()?, Vec::from_iter(0..100));
            }
        }
    }
    Ok(())
}
