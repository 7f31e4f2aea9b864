//! Files of a crate do not import each other, neither directly nor through others.
//!
//! The import of an item that a module only re-exports counts as an import of the file that defines it. A module that declares or
//! re-exports its children does not thereby import them; `#[cfg(test)]` code does not count.
//!
//! Every file of tests is part of a program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// The path of a module from the root of its crate: `["delivery", "server"]`.
type Module = Vec<String>;

#[derive(Default)]
struct File {
    name: String,
    children: BTreeSet<String>,
    /// Names from `pub use` and `pub(crate) use`, with the paths that they stand for.
    reexports: BTreeMap<String, Vec<String>>,
    /// Paths used, from the root of the crate.
    paths: Vec<Vec<String>>,
}

#[test]
fn no_two_files_import_each_other() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates have a parent");
    let mut wrong = Vec::new();
    for entry in fs::read_dir(crates).expect("the directory of all crates") {
        let root = entry.expect("an entry of that directory").path();
        let name = root.file_name().expect("a crate has a name").to_string_lossy().into_owned();
        for cycle in cycles(&imports(&root.join("src"))) {
            wrong.push(format!("{name}: these import each other: {}", cycle.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Cargo looks for no tests in a crate with a suite (`autotests = false`), so a file that neither the suite nor Cargo.toml names would
/// never run.
#[test]
fn every_file_of_tests_is_built() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates have a parent");
    let mut suites = 0;
    for entry in fs::read_dir(crates).expect("the directory of all crates") {
        let root = entry.expect("an entry of that directory").path();
        let Ok(suite) = fs::read_to_string(root.join("tests/suite.rs")) else { continue };
        suites += 1;
        let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("a manifest");
        for file in fs::read_dir(root.join("tests")).expect("the directory of tests") {
            let file = file.expect("an entry of that directory").path();
            if file.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let name = file.file_stem().expect("a name").to_string_lossy();
            let is_named = suite.contains(&format!("\nmod {name};\n"))
                || manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"));
            assert!(is_named, "{}: neither tests/suite.rs nor Cargo.toml names it", file.display());
        }
    }
    assert!(suites > 0);
}

/// Every file of a crate with the files that it imports.
fn imports(src: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut files = BTreeMap::new();
    for root in ["lib.rs", "main.rs"].map(|root| src.join(root)).iter().filter(|f| f.exists()) {
        read(src, root, src, Vec::new(), &mut files);
    }
    let target =
        |path: &[String]| Some(files.get(&definition(&files, path.to_vec(), 0)?)?.name.clone());
    let of = |file: &File| {
        let targets: BTreeSet<String> = file.paths.iter().filter_map(|p| target(p)).collect();
        targets.into_iter().filter(|target| *target != file.name).collect()
    };
    files.values().map(|file| (file.name.clone(), of(file))).collect()
}

/// The module that defines the item of a path, after following re-exports.
fn definition(files: &BTreeMap<Module, File>, path: Vec<String>, depth: u8) -> Option<Module> {
    let end = (0..=path.len()).rev().find(|end| files.contains_key(&path[..*end]))?;
    let (module, rest) = path.split_at(end);
    let reexport = rest.first().and_then(|name| files[module].reexports.get(name));
    match reexport.filter(|_| depth < 8) {
        Some(other) => definition(files, [other, &rest[1..]].concat(), depth + 1),
        None => Some(module.to_vec()),
    }
}

/// Reads a module and its children; `dir` is where the children's files are.
fn read(src: &Path, path: &Path, dir: &Path, module: Module, files: &mut BTreeMap<Module, File>) {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let name = path.strip_prefix(src).expect("modules are below the root").display().to_string();
    let mut reader =
        Reader { module: module.clone(), depth: 0, file: File { name, ..File::default() } };
    let declared = |item: &Item| matches!(item, Item::Mod(item) if item.content.is_none());
    for item in parsed.items.iter().filter(|item| declared(item)) {
        let Item::Mod(item) = item else { continue };
        if is_test(&item.attrs) {
            continue;
        }
        let child = item.ident.to_string();
        let own_dir = dir.join(&child);
        let flat = dir.join(format!("{child}.rs"));
        let child_path = if flat.exists() { flat } else { own_dir.join("mod.rs") };
        reader.file.children.insert(child.clone());
        read(src, &child_path, &own_dir, [module.clone(), vec![child]].concat(), files);
    }
    reader.visit_file(&parsed);
    files.insert(module, reader.file);
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let meta = attribute.meta.require_list();
        attribute.path().is_ident("cfg")
            && meta.is_ok_and(|list| list.tokens.to_string().contains("test"))
    })
}

struct Reader {
    module: Module,
    /// Depth of modules within the file.
    depth: usize,
    file: File,
}

impl Reader {
    /// The path from the root of the crate; `None` for a path of another crate or of this module.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let supers = path.iter().take_while(|segment| *segment == "super").count();
        match path.first()?.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "super" => {
                let kept =
                    self.module.len() - supers.saturating_sub(self.depth).min(self.module.len());
                Some([&self.module[..kept], &path[supers..]].concat())
            }
            "self" if path.len() > 1 => Some([&self.module, &path[1..]].concat()),
            first if self.file.children.contains(first) => Some([&self.module, path].concat()),
            _ => None,
        }
    }

    fn note_tree(&mut self, tree: &UseTree, before: &[String], is_reexport: bool) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        let (path, given) = match tree {
            UseTree::Path(tree) => {
                return self.note_tree(&tree.tree, &with(&tree.ident), is_reexport);
            }
            UseTree::Group(group) => {
                return group
                    .items
                    .iter()
                    .for_each(|tree| self.note_tree(tree, before, is_reexport));
            }
            UseTree::Glob(_) => (before.to_vec(), None),
            UseTree::Name(name) if name.ident == "self" => {
                (before.to_vec(), before.last().cloned())
            }
            UseTree::Name(name) => (with(&name.ident), Some(name.ident.to_string())),
            UseTree::Rename(name) => (with(&name.ident), Some(name.rename.to_string())),
        };
        match (self.absolute(&path), given) {
            (Some(path), Some(given)) if is_reexport => {
                self.file.reexports.insert(given, path);
            }
            (Some(path), _) => self.file.paths.push(path),
            (None, _) => {}
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_test(&item.attrs) {
            return;
        }
        self.depth += 1;
        visit::visit_item_mod(self, item);
        self.depth -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_reexport = !matches!(item.vis, Visibility::Inherited);
        if !is_test(&item.attrs) {
            self.note_tree(&item.tree, &[], is_reexport);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_test(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    /// Ignores the path of `pub(in …)`, which is not an import.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if let Some(path) = self.absolute(&segments).filter(|_| segments.len() > 1) {
            self.file.paths.push(path);
        }
        visit::visit_path(self, path);
    }
}

/// The sets of files that reach each other by their imports.
fn cycles(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|file| (file, reached_from(imports, file))).collect();
    let mut cycles: BTreeSet<Vec<String>> = BTreeSet::new();
    for (file, reached) in &reach {
        let with: Vec<String> = reached
            .iter()
            .filter(|other| reach[*other].contains(file))
            .map(|f| (*f).clone())
            .collect();
        if with.len() > 1 {
            cycles.insert(with);
        }
    }
    cycles.into_iter().collect()
}

fn reached_from<'a>(
    imports: &'a BTreeMap<String, BTreeSet<String>>,
    file: &'a String,
) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = imports[file].iter().collect();
    while let Some(file) = next.pop() {
        if reached.insert(file) {
            next.extend(imports.get(file).into_iter().flatten());
        }
    }
    reached
}
