//! Folders of files.

use super::*;
use kiln_data::Dataset;
use kiln_vision::datasets::{DatasetFolder, FolderOptions, ImageFolder, Omniglot};
use kiln_vision::{Image, Mode};
use std::path::Path;

#[test]
fn classes_and_files_come_in_order() -> Result<()> {
    let root = tempfile::tempdir().unwrap();
    for name in [
        "cat/b.TXT",
        "cat/a/z.txt",
        "cat/a/x/w.txt",
        "cat/a-b/y.txt",
        "cat/c.bin",
        "ant/1.txt",
        "ant/10.txt",
        "ant/2.txt",
        "stray.txt",
    ] {
        write_file(&root, name, name);
    }
    let read = |path: &Path| Ok(std::fs::read_to_string(path).unwrap());
    let set = DatasetFolder::new(&root, read, [".txt"])?;
    assert_eq!(set.classes(), ["ant", "cat"]);
    let all: Result<Vec<_>> = (0..set.len()).map(|i| set.get(i)).collect();
    let names = [
        ("ant/1.txt", 0),
        ("ant/10.txt", 0),
        ("ant/2.txt", 0),
        ("cat/b.TXT", 1),
        ("cat/a/z.txt", 1),
        ("cat/a-b/y.txt", 1),
        ("cat/a/x/w.txt", 1),
    ];
    assert_eq!(all?, names.map(|(name, label)| (name.to_string(), label)));
    assert_eq!(set.targets(), [0, 0, 0, 1, 1, 1, 1]);
    let valid = FolderOptions::new().is_valid_file(|path| path.ends_with("c.bin"));
    let error = message(DatasetFolder::with(&root, read, valid.clone()));
    assert!(error.contains("no files of the classes ant"), "{error}");
    let set = DatasetFolder::with(&root, read, valid.allow_empty(true))?;
    assert_eq!((set.len(), set.get(0)?.1), (1, 1));
    let both = FolderOptions::new()
        .extensions([".txt"])
        .is_valid_file(|_| true);
    for wrong in [both, FolderOptions::new()] {
        assert!(message(DatasetFolder::with(&root, read, wrong)).contains("either extensions"));
    }
    Ok(())
}

#[test]
fn pictures_become_rgb() -> Result<()> {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("a/deep")).unwrap();
    let grey = Image::from_bytes(vec![1, 2, 3, 4, 5, 6], 3, 2, Mode::L)?;
    grey.save(root.path().join("a/deep/x.PNG"))?;
    grey.convert(Mode::RGBA).save(root.path().join("a/y.bmp"))?;
    write_file(&root, "a/notes.md", "not a picture");
    let set = ImageFolder::new(&root)?;
    assert_eq!(set.len(), 2);
    for i in 0..2 {
        assert_eq!(set.get(i)?, (grey.convert(Mode::RGB), 0));
    }
    assert!(set.imgs()[0].0.ends_with("a/y.bmp"));
    // A file that is not a picture is an error that names it, when it is read.
    write_file(&root, "a/z.png", "no picture");
    let set = ImageFolder::new(&root)?;
    assert!(message(set.get(1)).contains("z.png"));
    assert!(message(set.get(3)).contains("out of range"));
    assert!(message(ImageFolder::new(root.path().join("a/deep"))).contains("no class folders"));
    assert!(message(ImageFolder::new(root.path().join("none"))).contains("none"));
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_folder_that_holds_itself_ends() -> Result<()> {
    let root = tempfile::tempdir().unwrap();
    write_file(&root, "a/1.txt", "");
    std::os::unix::fs::symlink(root.path().join("a"), root.path().join("a/again")).unwrap();
    std::os::unix::fs::symlink(root.path().join("a"), root.path().join("b")).unwrap();
    let set = DatasetFolder::new(&root, |_| Ok(()), [".txt"])?;
    assert_eq!(set.targets(), [0, 1]);
    Ok(())
}

#[test]
fn characters_of_alphabets() -> Result<()> {
    let root = tempfile::tempdir().unwrap();
    let error = message(Omniglot::new(&root, true));
    assert!(
        error.contains("68d2efa1b9178cc56df9314c21c6e718"),
        "{error}"
    );
    let letter = Image::filled(105, 105, Mode::L, &[255])?;
    for name in [
        "Latin/character01/1",
        "Greek/character02/1",
        "Greek/character01/7",
    ] {
        let path = root.path().join("omniglot-py/images_evaluation").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        letter.save(path.with_extension("png"))?;
    }
    let set = Omniglot::new(&root, false)?;
    assert_eq!(
        set.characters(),
        [
            "Greek/character01",
            "Greek/character02",
            "Latin/character01"
        ]
    );
    assert_eq!((set.len(), set.get(2)?), (3, (letter, 2)));
    write_file(&root, "omniglot-py/images_evaluation.zip", "damaged");
    let error = message(Omniglot::download(&root, false));
    assert!(
        error.contains("6b91aef0f799c5bb55b94e3f2daec811"),
        "{error}"
    );
    Ok(())
}
