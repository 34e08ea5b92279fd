//! Attributes of objects as extended attributes of files: `user.object.content-type` and others,
//! and `user.object.meta.KEY` for those of users; and the ETag, which follows from those of the file.

use cairnfs::{Error, File, Metadata, Result};
use object_store::{Attribute, Attributes};

const PREFIX: &str = "user.object.";
const META: &str = "meta.";

/// The attributes with a name of their own.
const KNOWN: [(&str, Attribute); 6] = [
    ("cache-control", Attribute::CacheControl),
    ("content-disposition", Attribute::ContentDisposition),
    ("content-encoding", Attribute::ContentEncoding),
    ("content-language", Attribute::ContentLanguage),
    ("content-type", Attribute::ContentType),
    ("storage-class", Attribute::StorageClass),
];

/// The ETag of a file: its inode, which no other put has, and its last change.
pub(crate) fn e_tag(metadata: &Metadata) -> String {
    let attr = metadata.attr();
    let (ino, changed) = (attr.ino, attr.ctime);
    format!("\"{ino:x}-{:x}-{:x}\"", changed.secs, changed.nanos)
}

/// The name of an attribute after the prefix.
fn name_of(attribute: &Attribute) -> Option<String> {
    if let Attribute::Metadata(key) = attribute {
        return Some(format!("{META}{key}"));
    }
    let known = KNOWN.iter().find(|(_, known)| known == attribute);
    known.map(|(name, _)| (*name).to_owned())
}

fn attribute_of(name: &str) -> Option<Attribute> {
    if let Some(key) = name.strip_prefix(META) {
        return Some(Attribute::Metadata(key.to_owned().into()));
    }
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    known.map(|(_, attribute)| attribute.clone())
}

/// Sets the attributes of a new file.
pub(crate) fn set(file: &File, attributes: &Attributes) -> Result<()> {
    for (attribute, value) in attributes {
        let unknown = Error::Unsupported("an attribute of a newer version of object_store");
        let name = name_of(attribute).ok_or(unknown)?;
        file.set_xattr(format!("{PREFIX}{name}"), value.as_bytes())?;
    }
    Ok(())
}

/// The attributes of an object. Other extended attributes are none of it.
pub(crate) fn get(file: &File) -> Result<Attributes> {
    let mut attributes = Attributes::new();
    for name in file.list_xattrs()? {
        let short = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let Some(attribute) = short.and_then(attribute_of) else {
            continue;
        };
        let value = file.get_xattr(&name)?.map(String::from_utf8);
        if let Some(Ok(value)) = value {
            attributes.insert(attribute, value.into());
        }
    }
    Ok(attributes)
}
