//! State dicts have the names, dtypes, shapes and order of torchvision's and transformers'.

use crate::made::published;
use crate::reference::{fnv, stored};
use kiln::Result;
use kiln::nn::Module;

/// Lists a state dict in the format of `reference.py --keys`.
fn listing(model: &dyn Module) -> Result<String> {
    let mut text = String::new();
    for (name, value) in model.state_dict().iter() {
        let dtype = match value.dtype().name() {
            "f32" => "float32",
            "i64" => "int64",
            other => other,
        };
        text += &format!("{name} {dtype} {:?}\n", value.shape()?);
    }
    Ok(text)
}

#[test]
fn state_dicts_are_as_the_originals() -> Result<()> {
    let rows = stored()["keys"].as_array().expect("a list");
    assert!(rows.len() > 50);
    for row in rows {
        let name = row["model"].as_str().expect("a name");
        let model = published(name, 1000)?;
        let text = listing(model.module())?;
        let found = (text.lines().count(), model.module().num_parameters());
        let stored = |key: &str| row[key].as_u64().expect("a number") as usize;
        assert_eq!(
            found,
            (stored("values"), stored("parameters")),
            "{name}:\n{text}"
        );
        let hash = format!("{:016x}", fnv(&text));
        assert_eq!(
            row["hash"], hash,
            "{name} differs from reference.py --keys {name}:\n{text}"
        );
    }
    Ok(())
}
