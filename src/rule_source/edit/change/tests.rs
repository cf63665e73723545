//! Changes of which the loader reports something else than rules in force.

use tempfile::TempDir;

use super::*;
use crate::config::{CompileOptions, Source};
use crate::rule_source::edit::compile::Compiler;
use crate::rule_source::files::Directory;
use crate::rule_source::reload::LastLoad;
use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};

const RULES: &str = "domain: d\n";
const CHANGED: &str = "domain: e\n";

struct World {
    folder: TempDir,
    reload: Reload,
    live: Arc<LiveRules>,
    writer: Arc<RulesWriter>,
}

impl World {
    fn new() -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        fs::write(folder.path().join("a.yaml"), RULES).expect("it is written");
        let compiler = Compiler {
            directory: Directory {
                path: folder.path().to_owned(),
                root: None,
                name_prefix: String::new(),
                base: None,
                ignore_dot_files: false,
            },
            options: CompileOptions::new(StatsTable::new(METRIC_SERIES_MAX, &Metrics::new())),
            overlay: None,
        };
        let files = Arc::new(RuleFiles::new(compiler, &Metrics::new()));
        let (reload, live) = (Reload::default(), Arc::new(LiveRules::default()));
        let clock = Clock::system();
        let metrics = Metrics::new();
        let writer = RulesWriter::new(
            files,
            reload.clone(),
            live.clone(),
            clock,
            Writing::Enabled,
            &metrics,
        );
        Self {
            folder,
            reload,
            live,
            writer: Arc::new(writer),
        }
    }

    async fn make(&self) -> Changed {
        let change = RuleFileChange {
            name: FileName::new("a.yaml").expect("it is one"),
            expected: Expected::Any,
            replacement: Replacement::Text(CHANGED.as_bytes().into()),
        };
        let made = self.writer.clone().make(change).await;
        made.expect("it is written")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.folder.path().join("a.yaml")).expect("it exists")
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_does_not_come_is_reported() {
    let world = World::new();
    world.live.reject("read rules: too slow".to_owned());
    let changed = world.make().await;
    let error = changed.result.expect_err("nothing loads it").to_string();
    assert_eq!(
        error,
        "the file is written, but was not loaded within 10 s: read rules: too slow"
    );
    assert_eq!((changed.version_before, changed.version), (1, 2));
    assert_eq!(world.text(), CHANGED);
}

#[tokio::test]
async fn rules_that_are_rejected_with_another_change_are_reported() {
    let world = World::new();
    let requested = world.reload.requested();
    let load = async {
        requested.notified().await;
        world.reload.report(LastLoad {
            sources: vec![Source {
                name: "a.yaml".into(),
                path: world.folder.path().join("a.yaml").to_string_lossy().into(),
                text: CHANGED.into(),
            }],
            problems: vec!["b.yaml: invalid".to_owned()],
        });
    };
    let (changed, ()) = tokio::join!(world.make(), load);
    let error = changed.result.expect_err("it is rejected").to_string();
    assert!(error.ends_with("stay in force: b.yaml: invalid"), "{error}");
    assert!(changed.diff.contains("+domain: e"), "{}", changed.diff);
}

#[tokio::test(start_paused = true)]
async fn changes_wait_for_their_turn_within_a_bound() {
    let world = World::new();
    let _turn = world.writer.turn.lock().await;
    let change = RuleFileChange {
        name: FileName::new("a.yaml").expect("it is one"),
        expected: Expected::Any,
        replacement: Replacement::Version(1),
    };
    let made = world.writer.clone().make(change).await;
    assert!(matches!(made, Err(ChangeError::Busy)), "{made:?}");
    assert_eq!(world.text(), RULES);
}
