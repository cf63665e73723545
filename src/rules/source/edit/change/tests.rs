//! Changes of which the loader reports something else than rules in force.

use tempfile::TempDir;

use super::*;
use crate::rules::config::Source;
use crate::rules::source::edit::Access;
use crate::rules::source::files::Directory;
use crate::rules::source::reload::{LastLoad, Reload};

const RULES: &str = "domain: d\n";
const CHANGED: &str = "domain: e\n";

struct World {
    folder: TempDir,
    files: Arc<RuleFiles>,
}

impl World {
    fn new() -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        fs::write(folder.path().join("a.yaml"), RULES).expect("it is written");
        let metrics = Metrics::new();
        let files = RuleFiles {
            directory: Directory { path: folder.path().to_owned(), ..Directory::default() },
            options: CompileOptions::new(StatsTable::new(METRIC_SERIES_MAX, &metrics)),
            overlay: None,
            is_writable: true,
            reload: Reload::default(),
            access: Access::new(&metrics),
        };
        let files = Arc::new(files);
        Self { folder, files }
    }

    async fn change(&self) -> Result<Changed, EditError> {
        let name = FileName::new("a.yaml").expect("it is one");
        let text = CHANGED.as_bytes().into();
        self.files.change(name, "*".to_owned(), text).await
    }

    fn text(&self) -> String {
        fs::read_to_string(self.folder.path().join("a.yaml")).expect("it exists")
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_does_not_come_is_reported() {
    let world = World::new();
    let changed = world.change().await;
    assert!(matches!(changed, Err(EditError::Late)), "{changed:?}");
    assert_eq!(world.text(), CHANGED);
}

#[tokio::test]
async fn rules_that_are_rejected_with_another_change_are_reported() {
    let world = World::new();
    let requested = world.files.reload.requested();
    let load = async {
        requested.notified().await;
        world.files.reload.report(LastLoad {
            sources: vec![Source {
                name: "a.yaml".into(),
                path: world.folder.path().join("a.yaml").to_string_lossy().into(),
                text: CHANGED.into(),
            }],
            problems: vec!["b.yaml: invalid".to_owned()],
        });
    };
    let (changed, ()) = tokio::join!(world.change(), load);
    let error = changed.expect_err("it is rejected").to_string();
    assert!(error.ends_with("stay in force: b.yaml: invalid"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn changes_wait_for_their_turn_within_a_bound() {
    let world = World::new();
    let _turn = world.files.turn().await.expect("nobody has it");
    let turn = world.files.turn().await;
    assert!(matches!(turn, Err(EditError::Busy)), "{turn:?}");
}

/// Another program writes the file after it was compared, and before it is replaced.
#[test]
fn a_file_that_changed_meanwhile_is_not_replaced() {
    let world = World::new();
    let name = FileName::new("a.yaml").expect("it is one");
    let before = ETag::of(b"what was compared");
    let replaced = world.files.replace(&name, &before, CHANGED.as_bytes());
    assert!(matches!(replaced, Err(EditError::Changed(_))), "{replaced:?}");
    assert_eq!(world.text(), RULES);
    let own = fs::read_dir(world.folder.path().join(OWN_FOLDER)).expect("it is a folder");
    assert_eq!(own.count(), 0, "nothing is left");
}
