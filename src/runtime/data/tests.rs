//! Behaviour of loaders as a whole, over generated files.

use std::path::{Path, PathBuf};

use super::*;
use crate::runtime::error::RuntimeError;
use crate::runtime::tokenizer::TokenizerFile;
use crate::types::{DType, MapOp};

fn dim(name: &str, size: usize) -> Dim {
    Dim { name: name.into(), size }
}

fn ids(name: &str, batch: usize, seq: usize) -> Input {
    Input {
        name: name.into(),
        dtype: DType::I32,
        dims: vec![dim("batch", batch), dim("seq", seq)],
        sample: 0,
        bound: None,
    }
}

fn write(dir: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// A stream of the bytes 0, 1, 2, .. and its loader.
fn counting(n: usize, batch: usize, seq: usize, order: Order, shuffle: bool) -> Result<Loader, RuntimeError> {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "bytes", &(0..n).map(|i| i as u8).collect::<Vec<_>>());
    let source = Source { shuffle, ..Source::new(path, SourceKind::Bytes) };
    Loader::open(&DataSpec::Whole(source), &[ids("tokens", batch, seq), ids("targets", batch, seq)], order, None)
}

fn rows(batch: &Batch, name: &str) -> Vec<Vec<i64>> {
    let field = batch.field(name).unwrap();
    field.values().chunks(field.sizes[1]).map(|row| row.iter().map(|&v| v as i64).collect()).collect()
}

#[test]
fn a_pass_reads_in_order_without_overlap_and_leaves_out_the_rest() {
    let mut loader = counting(28, 2, 5, Order::Pass, true).unwrap();
    assert_eq!((loader.samples(), loader.batches(), loader.left_out()), (5, 2, 1));
    let batch = loader.batch(1).unwrap();
    assert_eq!(rows(&batch, "tokens"), [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]);
    assert_eq!(rows(&batch, "targets"), [[11, 12, 13, 14, 15], [16, 17, 18, 19, 20]]);
    assert_eq!(loader.fill(2, &mut batch.clone()).unwrap_err().code, "E0901");
}

#[test]
fn unshuffled_training_starts_at_the_start_and_runs_on_over_epochs() {
    let mut loader = counting(11, 2, 5, Order::Train { seed: 1 }, false).unwrap();
    assert_eq!(loader.samples(), 2);
    for step in 0..3 {
        assert_eq!(rows(&loader.batch(step).unwrap(), "tokens"), [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]);
    }
}

#[test]
fn shuffled_epochs_visit_each_window_once_at_a_new_offset() {
    let mut loader = counting(101, 3, 10, Order::Train { seed: 5 }, true).unwrap();
    let count = loader.samples();
    assert_eq!(count, 9);
    let mut offsets = std::collections::BTreeSet::new();
    let mut orders = std::collections::BTreeSet::new();
    for epoch in 0..40 {
        let starts: Vec<i64> = (epoch * 3..epoch * 3 + 3)
            .flat_map(|step| rows(&loader.batch(step).unwrap(), "tokens"))
            .map(|row| {
                assert!(row.windows(2).all(|w| w[1] == w[0] + 1), "{row:?}");
                row[0]
            })
            .collect();
        let mut sorted = starts.clone();
        sorted.sort();
        assert!(sorted.windows(2).all(|w| w[1] == w[0] + 10), "{sorted:?}");
        assert!((0..10).contains(&sorted[0]));
        offsets.insert(sorted[0]);
        orders.insert(starts.iter().map(|s| s / 10).collect::<Vec<_>>());
    }
    assert!(offsets.len() > 7 && orders.len() > 35, "{} {}", offsets.len(), orders.len());
}

#[test]
fn batches_run_on_over_epoch_ends() {
    let mut loader = counting(101, 4, 10, Order::Train { seed: 5 }, true).unwrap();
    let mut seen: Vec<i64> =
        (0..9).flat_map(|step| rows(&loader.batch(step).unwrap(), "tokens")).map(|row| row[0] / 10).collect();
    assert_eq!(seen.len(), 36);
    for epoch in seen.chunks_mut(9) {
        epoch.sort();
        assert_eq!(epoch, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
}

#[test]
fn a_step_gives_the_same_batch_whatever_was_asked_before() {
    let all = |seed| -> Vec<Vec<Vec<i64>>> {
        let mut loader = counting(200, 4, 10, Order::Train { seed }, true).unwrap();
        (0..20).map(|s| rows(&loader.batch(s).unwrap(), "tokens")).collect()
    };
    let expected = all(9);
    assert_ne!(expected, all(10));
    let mut loader = counting(200, 4, 10, Order::Train { seed: 9 }, true).unwrap();
    for step in [19, 3, 4, 11, 0] {
        assert_eq!(rows(&loader.batch(step).unwrap(), "tokens"), expected[step as usize]);
    }
}

#[test]
fn a_single_window_moves_only_as_far_as_there_is_room() {
    let mut loader = counting(14, 1, 10, Order::Train { seed: 1 }, true).unwrap();
    assert_eq!(loader.samples(), 1);
    let starts: std::collections::BTreeSet<i64> =
        (0..60).map(|s| rows(&loader.batch(s).unwrap(), "tokens")[0][0]).collect();
    assert!(starts.into_iter().eq(0..4));
    // exactly one window: always the same
    let mut loader = counting(11, 1, 10, Order::Train { seed: 1 }, true).unwrap();
    assert!((0..20).all(|s| rows(&loader.batch(s).unwrap(), "tokens")[0][0] == 0));
}

#[test]
fn too_little_data_is_an_error() {
    for (n, batch) in [(0, 1), (10, 1), (20, 2)] {
        for order in [Order::Pass, Order::Train { seed: 0 }] {
            let e = counting(n, batch, 10, order, true).unwrap_err();
            assert_eq!(e.code, "E0804", "{n} {e}");
        }
    }
    counting(21, 2, 10, Order::Train { seed: 0 }, true).unwrap();
}

#[test]
fn documents_and_positions_follow_the_end_id() {
    let dir = tempfile::tempdir().unwrap();
    let tokens: Vec<u8> = [5u16, 0, 6, 7, 0, 0, 8].iter().flat_map(|t| t.to_le_bytes()).collect();
    let path = write(dir.path(), "t.bin", &tokens);
    let spec = DataSpec::Whole(Source::new(path, SourceKind::Tokens { width: IdWidth::U16, end: Some(0) }));
    let inputs = [ids("position", 1, 6), ids("document", 1, 6), ids("tokens", 1, 6)];
    let batch = Loader::open(&spec, &inputs, Order::Pass, None).unwrap().batch(0).unwrap();
    assert_eq!(rows(&batch, "tokens"), [[5, 0, 6, 7, 0, 0]]);
    assert_eq!(rows(&batch, "document"), [[0, 0, 1, 1, 1, 2]]);
    assert_eq!(rows(&batch, "position"), [[0, 1, 0, 1, 2, 0]]);
}

#[test]
fn sequences_may_lie_along_either_dim() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "b", b"abcdefg");
    let mut input = ids("tokens", 2, 3);
    input.dims.reverse();
    input.sample = 1;
    let spec = DataSpec::Whole(Source::new(path, SourceKind::Bytes));
    let batch = Loader::open(&spec, &[input], Order::Pass, None).unwrap().batch(0).unwrap();
    let text: String = batch.fields[0].values().iter().map(|&v| v as u8 as char).collect();
    assert_eq!((text.as_str(), &batch.fields[0].sizes[..]), ("adbecf", &[3, 2][..]));
}

#[test]
fn lines_are_samples() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "names", b"ann\nbo\ncarl\n");
    let source = Source { shuffle: false, ..Source::new(path, SourceKind::Lines) };
    let inputs = [ids("tokens", 2, 5), ids("targets", 2, 5), ids("position", 2, 5)];
    let mut loader = Loader::open(&DataSpec::Whole(source), &inputs, Order::Train { seed: 0 }, None).unwrap();
    let batch = loader.batch(1).unwrap();
    assert_eq!(rows(&batch, "tokens"), [[10, 99, 97, 114, 108], [10, 97, 110, 110, 10]]);
    assert_eq!(rows(&batch, "targets"), [[99, 97, 114, 108, 10], [97, 110, 110, 10, -100]]);
    assert_eq!(rows(&batch, "position"), [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]);
}

#[test]
fn characters_of_validation_use_the_training_table() {
    let dir = tempfile::tempdir().unwrap();
    let train = write(dir.path(), "train", "abcabcabc".as_bytes());
    let valid = write(dir.path(), "valid", "cccccc".as_bytes());
    let open = |path: &Path, table: Option<&CharTable>| {
        let spec = DataSpec::Whole(Source::new(path, SourceKind::Chars));
        Loader::open(&spec, &[ids("tokens", 1, 2)], Order::Pass, table).unwrap()
    };
    let table = open(&train, None).chars().unwrap().clone();
    assert_eq!(rows(&open(&valid, Some(&table)).batch(0).unwrap(), "tokens"), [[2, 2]]);
    assert_eq!(rows(&open(&valid, None).batch(0).unwrap(), "tokens"), [[0, 0]]);
}

#[test]
fn text_goes_through_a_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = write(
        dir.path(),
        "tokenizer.json",
        br#"{"version":"1.0","added_tokens":[],"pre_tokenizer":{"type":"Whitespace"},
            "model":{"type":"WordLevel","vocab":{"to":0,"be":1,"or":2,"not":3},"unk_token":"or"}}"#,
    );
    let path = write(dir.path(), "t.txt", b"to be or not to be");
    let text = |end: Option<&str>, split: Option<&str>| {
        let (end, split) = (end.map(String::from), split.map(String::from));
        DataSpec::Whole(Source::new(&path, SourceKind::Text { tokenizer: TokenizerFile::at(&tokenizer), end, split }))
    };
    let spec = text(None, None);
    let mut loader = Loader::open(&spec, &[ids("tokens", 1, 5)], Order::Pass, None).unwrap();
    assert_eq!(rows(&loader.batch(0).unwrap(), "tokens"), [[0, 1, 2, 3, 0]]);
    let bound = Bound { dim: "vocab".into(), size: 3, negative: false };
    let input = Input { bound: Some(bound), ..ids("tokens", 1, 5) };
    let e = Loader::open(&spec, &[input], Order::Pass, None).unwrap_err();
    assert!(e.message.contains("id 3 at position 3"), "{e}");

    // the end of the file, and of what stands between "or"s; the token in the text ends a document, too
    let all = |spec: &DataSpec, n: usize| {
        let inputs = [ids("tokens", 1, n), ids("targets", 1, n), ids("document", 1, n), ids("position", 1, n)];
        let batch = Loader::open(spec, &inputs, Order::Pass, None).unwrap().batch(0).unwrap();
        ["tokens", "targets", "document", "position"].map(|f| rows(&batch, f).remove(0))
    };
    let [tokens, targets, document, position] = all(&text(Some("or"), None), 6);
    assert_eq!((tokens, targets), (vec![0, 1, 2, 3, 0, 1], vec![1, 2, 3, 0, 1, 2]));
    assert_eq!((document, position), (vec![0, 0, 0, 1, 1, 1], vec![0, 1, 2, 0, 1, 2]));
    std::fs::write(&path, "\nto be\n\nnot to be or\n\n\n\nto\n").unwrap();
    let [tokens, targets, document, _] = all(&text(Some("or"), Some("\n\n")), 8);
    assert_eq!((tokens, targets[7]), (vec![0, 1, 2, 3, 0, 1, 2, 0], 2));
    assert_eq!(document, [0, 0, 0, 1, 1, 1, 1, 2]);
    let e = Loader::open(&text(Some("and"), None), &[ids("tokens", 1, 5)], Order::Pass, None).unwrap_err();
    assert!(e.code == "E0803" && e.message.contains("has no token `and`"), "{e}");
}

fn image_input(dims: Vec<Dim>, dtype: DType) -> Input {
    Input { name: "image".into(), dtype, dims, sample: 0, bound: None }
}

fn label_input(batch: usize, size: usize) -> Input {
    let bound = Some(Bound { dim: "class".into(), size, negative: false });
    Input { name: "label".into(), dtype: DType::I32, dims: vec![dim("batch", batch)], sample: 0, bound }
}

#[test]
fn images_and_labels_from_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let table = write(dir.path(), "d.csv", b"p0,p1,p2,p3,label\n0,8,16,4,1\n1,2,3,4,0\n5,6,7,8,2\n");
    let csv = |column, count| Expr::Source(Source::new(&table, SourceKind::Csv { column, count }));
    let pixels = Expr::Map(MapOp::Div, vec![csv(None, Some(4)), Expr::Int(16)]);
    let spec = DataSpec::Fields(vec![("label".into(), csv(Some(4), None)), ("image".into(), pixels)]);
    let image = image_input(vec![dim("batch", 2), dim("row", 2), dim("col", 2)], DType::F32);
    let mut loader = Loader::open(&spec, &[image.clone(), label_input(2, 3)], Order::Pass, None).unwrap();
    assert_eq!((loader.samples(), loader.batches(), loader.left_out()), (3, 1, 1));
    let batch = loader.batch(0).unwrap();
    assert_eq!(batch.field("image").unwrap().values(), [0.0, 0.5, 1.0, 0.25, 0.0625, 0.125, 0.1875, 0.25]);
    assert_eq!(batch.field("label").unwrap().values(), [1.0, 0.0]);

    // each sample once an epoch, image and label together
    let mut loader = Loader::open(
        &spec,
        &[image_input(vec![dim("batch", 1), dim("p", 4)], DType::F64), label_input(1, 3)],
        Order::Train { seed: 3 },
        None,
    )
    .unwrap();
    let mut epoch: Vec<(f64, f64)> = (3..6)
        .map(|s| {
            let b = loader.batch(s).unwrap();
            (b.field("label").unwrap().values()[0], b.field("image").unwrap().values()[0] * 16.0)
        })
        .collect();
    epoch.sort_by(|a, b| a.partial_cmp(b).unwrap());
    assert_eq!(epoch, [(0.0, 1.0), (1.0, 0.0), (2.0, 5.0)]);

    let e = Loader::open(&spec, &[image, label_input(2, 2)], Order::Pass, None).and_then(|mut l| l.batch(0));
    assert!(e.is_ok(), "labels 1 and 0 are below 2");
    let wide = image_input(vec![dim("batch", 3), dim("p", 4)], DType::F32);
    let e = Loader::open(&spec, &[wide, label_input(3, 2)], Order::Pass, None).unwrap().batch(0).unwrap_err();
    assert_eq!(e.code, "E0803");
    assert!(e.message.contains("value 2 for input `label`") && e.message.contains("sample 3, element 1 of"), "{e}");
}

#[test]
fn misfits_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let images = write(dir.path(), "i.npy", &npy::write("|u1", false, &[4, 2, 3], &[1; 24]));
    let floats = write(dir.path(), "f.npy", &npy::write("<f4", false, &[4], &[0; 16]));
    let few = write(dir.path(), "l.npy", &npy::write("|u1", false, &[3], &[0; 3]));
    let npy_of = |path: &Path| Expr::Source(Source::new(path, SourceKind::Npy));
    let fields = |list: &[(&str, &Path)]| {
        DataSpec::Fields(list.iter().map(|(name, path)| (name.to_string(), npy_of(path))).collect())
    };
    let message = |spec: &DataSpec, inputs: &[Input]| {
        let e = Loader::open(spec, inputs, Order::Pass, None).unwrap_err();
        assert!(e.code == "E0803" && e.help.is_some(), "{e}");
        e.message
    };
    let image = |rows, cols| image_input(vec![dim("batch", 2), dim("row", rows), dim("col", cols)], DType::F32);

    let both = fields(&[("image", &images), ("label", &few)]);
    assert!(message(&both, &[image(3, 2), label_input(2, 9)]).contains("has shape [2, 3]"));
    let cure = |e: RuntimeError| (e.input.unwrap_or_default(), e.help.unwrap_or_default());
    let swapped = Loader::open(&both, &[image(3, 2), label_input(2, 9)], Order::Pass, None).map_err(cure).unwrap_err();
    assert_eq!(swapped.0, "image");
    assert!(swapped.1.contains("in the file's order: `image: [batch, col, row]`"), "{swapped:?}");
    let other = Loader::open(&both, &[image(3, 3), label_input(2, 9)], Order::Pass, None).map_err(cure).unwrap_err();
    assert!(other.1.contains("declare the dims so"), "{other:?}");
    let table = write(dir.path(), "t.csv", b"1,2,3\n4,5,6\n");
    let csv = Source::new(table, SourceKind::Csv { column: None, count: None });
    let columns = DataSpec::Fields(vec![("image".into(), Expr::Source(csv))]);
    let narrow = Loader::open(&columns, &[image(1, 2)], Order::Pass, None).map_err(cure).unwrap_err();
    assert!(narrow.1.contains("count = 2"), "{narrow:?}");
    assert!(message(&both, &[image(2, 3), label_input(2, 9)]).contains("4 samples"));
    let float_label = fields(&[("image", &images), ("label", &floats)]);
    assert!(message(&float_label, &[image(2, 3), label_input(2, 9)]).contains("gives float"));
    assert!(message(&fields(&[("image", &images)]), &[image(2, 3), label_input(2, 9)]).contains("no data for"));
    assert!(
        message(&DataSpec::Whole(Source::new(&images, SourceKind::Npy)), &[image(2, 3), label_input(2, 9)])
            .contains("gives one array")
    );
    assert!(message(&DataSpec::Whole(Source::new(&images, SourceKind::Bytes)), &[image(2, 3)]).contains("sequences"));
    let mut other = ids("words", 2, 3);
    assert!(message(&DataSpec::Whole(Source::new(&images, SourceKind::Bytes)), &[other.clone()]).contains("`words`"));
    other.name = "targets".into();
    other.dims[0].size = 3;
    assert!(
        message(&DataSpec::Whole(Source::new(&images, SourceKind::Bytes)), &[ids("tokens", 2, 3), other])
            .contains("different sample dims")
    );

    // axes of size 1 come and go; a single array feeds a single input
    let channel = image_input(vec![dim("batch", 2), dim("channel", 1), dim("row", 2), dim("col", 3)], DType::F32);
    Loader::open(&DataSpec::Whole(Source::new(&images, SourceKind::Npy)), &[channel], Order::Pass, None).unwrap();
    let mut part = Source::new(&images, SourceKind::Npy);
    (part.from, part.to) = (0.5, 0.5);
    assert!(message(&DataSpec::Whole(part), &[image(2, 3)]).contains("is no part"));
}

#[test]
fn large_integers_and_masks_are_checked_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let longs: Vec<u8> = [1i64, 1 << 31].iter().flat_map(|v| v.to_le_bytes()).collect();
    let path = write(dir.path(), "l.npy", &npy::write("<i8", false, &[2], &longs));
    let spec = DataSpec::Whole(Source::new(path, SourceKind::Npy));
    let input = |dtype| Input { name: "x".into(), dtype, dims: vec![dim("batch", 1)], sample: 0, bound: None };
    let mut loader = Loader::open(&spec, &[input(DType::I32)], Order::Pass, None).unwrap();
    loader.batch(0).unwrap();
    assert!(loader.batch(1).unwrap_err().message.contains("2147483648"));
    let mut loader = Loader::open(&spec, &[input(DType::Bool)], Order::Pass, None).unwrap();
    assert_eq!(loader.batch(0).unwrap().fields[0].bytes(), [1]);
    assert!(loader.batch(1).unwrap_err().message.contains("neither 0 nor 1"));
}

#[test]
fn the_prefetcher_gives_the_loaders_batches_in_order() {
    let mut loader = counting(300, 4, 10, Order::Train { seed: 2 }, true).unwrap();
    let expected: Vec<_> = (7..30).map(|s| rows(&loader.batch(s).unwrap(), "tokens")).collect();
    let mut prefetcher = Prefetcher::start(loader, 7..30, 3).unwrap();
    for (i, rows_expected) in expected.iter().enumerate() {
        let batch = prefetcher.next_batch().unwrap().unwrap();
        assert_eq!((batch.step, &rows(&batch, "tokens")), (7 + i as u64, rows_expected));
        prefetcher.recycle(batch);
    }
    assert!(prefetcher.next_batch().unwrap().is_none());
    assert!(prefetcher.next_batch().unwrap().is_none());
    // dropping one that is full or waiting ends its thread
    drop(Prefetcher::start(counting(300, 4, 10, Order::Pass, true).unwrap(), 0..7, 2).unwrap());
    let mut waiting =
        Prefetcher::start(counting(300, 4, 10, Order::Train { seed: 1 }, true).unwrap(), 0..99, 1).unwrap();
    let _ = (waiting.next_batch().unwrap(), waiting.next_batch().unwrap());
}

#[test]
fn the_prefetcher_passes_errors_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "b", &[b'a'; 1000]);
    let spec = DataSpec::Whole(Source { shuffle: false, ..Source::new(&path, SourceKind::Bytes) });
    let loader = Loader::open(&spec, &[ids("tokens", 1, 10)], Order::Train { seed: 0 }, None).unwrap();
    std::fs::write(&path, b"a").unwrap();
    let mut prefetcher = Prefetcher::start(loader, 0..5, 2).unwrap();
    assert_eq!(prefetcher.next_batch().unwrap_err().code, "E0801");
    assert!(prefetcher.next_batch().unwrap().is_none());
}

#[test]
fn descriptions_survive_serialisation_and_name_their_files() {
    let x = Source { from: 0.25, ..Source::new("x.npy", SourceKind::Npy) };
    let half = Expr::Map(MapOp::Div, vec![Expr::Source(x), Expr::Float(2.0)]);
    let expr = Expr::Map(MapOp::Cast(DType::I32), vec![half]);
    let spec = DataSpec::Fields(vec![("label".into(), expr)]);
    let packed = postcard::to_allocvec(&spec).unwrap();
    assert_eq!(postcard::from_bytes::<DataSpec>(&packed).unwrap(), spec);
    assert_eq!(spec.paths(), [Path::new("x.npy")]);
    assert_eq!(spec.files(), [("label".to_string(), PathBuf::from("x.npy"))]);
}
