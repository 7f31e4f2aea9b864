//! The user as whom a program runs, with all groups of that user.

use std::ffi::{CString, OsString};
use std::io;

use nix::unistd::{Uid, User, geteuid, initgroups, setgid, setuid};

use crate::error::Error;

/// A user of this host, as whom a program can run.
#[derive(Clone, Debug)]
pub struct ProgramUser(User);

impl ProgramUser {
    /// The user of this name or number; `None` if this process runs as that user already.
    ///
    /// # Errors
    /// [`Error::NoUser`], and [`Error::NotRoot`] if this process may not become that user.
    pub fn named(name: &str) -> Result<Option<Self>, Error> {
        let by_name = User::from_name(name).map_err(table)?;
        let by_number =
            || name.parse().ok().map(Uid::from_raw).and_then(|uid| User::from_uid(uid).ok()?);
        let user = by_name.or_else(by_number).ok_or_else(|| Error::NoUser(name.to_owned()))?;
        if user.uid == geteuid() {
            return Ok(None);
        }
        if !geteuid().is_root() {
            return Err(Error::NotRoot);
        }
        Ok(Some(Self(user)))
    }

    /// The user of this number.
    ///
    /// # Errors
    /// [`Error::NoUser`].
    pub fn of(uid: u32) -> Result<Self, Error> {
        let user = User::from_uid(Uid::from_raw(uid)).map_err(table)?;
        user.map(Self).ok_or_else(|| Error::NoUser(uid.to_string()))
    }

    /// The number of the user.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.0.uid.as_raw()
    }

    /// Makes this process one of the user, with all groups. The process cannot return to its rights.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn assume(&self) -> Result<(), Error> {
        let User { name, uid, gid, .. } = &self.0;
        let refused = |what: &str| {
            let what = format!("cannot {what} {name}");
            move |error: nix::Error| Error::io(what, error.into())
        };
        let of_groups = CString::new(name.as_str()).map_err(|_| Error::NoUser(uid.to_string()))?;
        initgroups(&of_groups, *gid).map_err(refused("set the groups of"))?;
        setgid(*gid).map_err(refused("set the groups of"))?;
        setuid(*uid).map_err(refused("become"))
    }

    /// The environment variables of the user: home directory and names.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, OsString); 3] {
        let User { name, dir, .. } = &self.0;
        [("HOME", dir.clone().into()), ("USER", name.into()), ("LOGNAME", name.into())]
    }
}

fn table(error: nix::Error) -> Error {
    Error::io("the table of users", io::Error::from(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_a_name_or_a_number() {
        assert!(matches!(ProgramUser::named("no-such-user"), Err(Error::NoUser(_))));
        assert!(matches!(ProgramUser::of(4_000_000_000), Err(Error::NoUser(_))));
        let own = geteuid().to_string();
        assert!(ProgramUser::named(&own).unwrap().is_none(), "it runs as that user already");
        let root = ProgramUser::of(0).unwrap();
        assert_eq!(root.uid(), 0);
        assert!(root.variables().contains(&("USER", "root".into())));
        match ProgramUser::named("65534") {
            Ok(Some(nobody)) => assert_eq!(nobody.uid(), 65_534),
            Ok(None) => assert_eq!(own, "65534"),
            Err(error) => assert!(matches!(error, Error::NotRoot | Error::NoUser(_)), "{error}"),
        }
    }
}
