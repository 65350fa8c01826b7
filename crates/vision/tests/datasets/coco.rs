//! Annotations.

use super::*;
use kiln_data::Dataset;
use kiln_vision::datasets::{CocoCaptions, CocoDetection, Counts, Segmentation};
use kiln_vision::{Image, Mode};

pub const INSTANCES: &str = r#"{
    "info": {"year": 2017}, "licenses": [],
    "images": [
        {"id": 9, "file_name": "b.png", "width": 4, "height": 2, "license": 1},
        {"id": 2, "file_name": "a.png", "width": 4, "height": 2}
    ],
    "annotations": [
        {"id": 7, "image_id": 9, "category_id": 18, "bbox": [1, 0, 2.5, 2], "area": 5.0, "iscrowd": 0,
         "segmentation": [[1, 0, 3.5, 0, 3.5, 2]]},
        {"id": 8, "image_id": 9, "category_id": 1, "bbox": [0, 0, 4, 2], "area": 8, "iscrowd": 1,
         "segmentation": {"counts": [0, 8], "size": [2, 4]}},
        {"id": 9, "image_id": 9, "category_id": 1, "bbox": [0, 0, 4, 2], "area": 8, "iscrowd": 1,
         "segmentation": {"counts": "08", "size": [2, 4]}}
    ],
    "categories": [{"id": 1, "name": "person", "supercategory": "person"}, {"id": 18, "name": "dog"}]
}"#;

fn pictures(root: &TempDir) -> Result<Image> {
    let image = Image::from_bytes(pattern(8), 4, 2, Mode::L)?;
    image.save(root.path().join("a.png"))?;
    image.save(root.path().join("b.png"))?;
    Ok(image.convert(Mode::RGB))
}

#[test]
fn pictures_come_with_what_is_marked() -> Result<()> {
    let root = tempfile::tempdir().unwrap();
    let image = pictures(&root)?;
    write_file(&root, "instances.json", INSTANCES);
    let set = CocoDetection::new(&root, root.path().join("instances.json"))?;
    assert_eq!(set.ids(), [2, 9]);
    assert_eq!(set.categories()[&18], "dog");
    assert_eq!(set.get(0)?, (image.clone(), Vec::new()));
    let (_, all) = set.get(1)?;
    assert_eq!(
        (all[0].bbox, all[0].category_id),
        ([1.0, 0.0, 2.5, 2.0], 18)
    );
    let polygon = vec![vec![1.0, 0.0, 3.5, 0.0, 3.5, 2.0]];
    assert_eq!(all[0].segmentation, Segmentation::Polygons(polygon));
    let runs = |counts| Segmentation::RunLengths {
        counts,
        size: [2, 4],
    };
    assert_eq!(all[1].segmentation, runs(Counts::Numbers(vec![0, 8])));
    assert_eq!(all[2].segmentation, runs(Counts::Packed("08".into())));
    let error = message(CocoCaptions::new(&root, root.path().join("instances.json")));
    assert!(error.contains("annotation 7 has no caption"), "{error}");
    Ok(())
}

#[test]
fn pictures_come_with_captions() -> Result<()> {
    let root = tempfile::tempdir().unwrap();
    pictures(&root)?;
    let file = r#"{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [
        {"id": 1, "image_id": 1, "caption": "A plane."}, {"id": 2, "image_id": 1, "caption": "Ein Flugzeug über Schnee."}]}"#;
    write_file(&root, "captions.json", file);
    let set = CocoCaptions::new(&root, root.path().join("captions.json"))?;
    assert_eq!(set.get(0)?.1, ["A plane.", "Ein Flugzeug über Schnee."]);
    for (from, to, wanted) in [
        ("a.png", "../a.png", "does not lie in the folder"),
        ("\"a.png\"", "\"/a.png\"", "does not lie in the folder"),
        ("\"image_id\": 1", "\"image_id\": 3", "which is not listed"),
        ("\"images\"", "\"pictures\"", "missing field"),
        ("}]}", "", "EOF"),
    ] {
        write_file(&root, "wrong.json", file.replace(from, to));
        let error = message(CocoCaptions::new(&root, root.path().join("wrong.json")));
        assert!(
            error.contains(wanted) && error.contains("wrong.json"),
            "{error}"
        );
    }
    Ok(())
}
