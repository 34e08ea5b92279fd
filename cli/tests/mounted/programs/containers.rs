//! podman with its storage on a mount: layers, containers, images made from containers.

use std::fs;

use crate::modes::Ext4;
use crate::place::{Place, able, shell};
use crate::programs::FOR_ALL;

/// Makes an image with the files that bash needs, an image from a container that changed it, and
/// a container from that image. Prints the output of podman and the containers.
const CONTAINERS: &str = r#"
    podman import -q ../base.tar base > /dev/null
    podman create -q --name first base /bin/bash > /dev/null
    root=$(podman mount first)
    echo more > $root/new; rm $root/etc/removed; mv $root/etc/moved $root/moved; mkdir $root/etc/opaque.new
    rm -r $root/etc/opaque; mkdir $root/etc/opaque; chmod 700 $root/etc/opaque.new; ln $root/new $root/linked
    podman diff first | sort
    podman unmount first > /dev/null; podman commit -q first changed > /dev/null; podman rm first > /dev/null
    for n in 1 2 3; do
        podman run --name run$n --net none --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 changed \
            /bin/bash -c "echo run $n; echo text >> /new; read -r line < /new; echo \$line; : > /etc/opaque/made; echo /etc/* /*"
        podman diff run$n | sort
    done
    podman save -q changed | tar -t | grep -c '/layer.tar$\|^[0-9a-f]*\.tar$'
    podman rm -a > /dev/null; podman rmi -a -f > /dev/null; podman images -q; podman system df | tail -n +2"#;

#[test]
#[ignore = "deep: needs podman and runc"]
fn podman_stores_containers_as_on_ext4() {
    if !able(&["podman", "runc", "mkfs.ext4"]) {
        return;
    }
    let place = Place::mounted("1G", FOR_ALL);
    let ext4 = Ext4::mounted(&place);
    let base = "mkdir -p base/etc/opaque/old; cd base; touch etc/removed etc/moved
        for file in /bin/bash $(ldd /bin/bash | grep -o '/[^ ]*'); do
            mkdir -p .$(dirname $file); cp -L $file .$file
        done
        tar -cf ../base.tar .";
    shell(&place.beside(""), base);
    let said = [place.dir(), ext4.0.clone()].map(|dir| {
        fs::copy(place.beside("base.tar"), dir.join("base.tar")).unwrap();
        let storage = dir.join("storage");
        fs::create_dir(&storage).unwrap();
        let podman = "podman() { command podman --root $PWD/root --runroot $PWD/run --tmpdir $PWD/tmp \
            --storage-driver overlay --cgroup-manager cgroupfs --events-backend file --runtime runc \"$@\"; }";
        shell(&storage, &format!("{podman}\n{CONTAINERS}"))
    });
    assert_eq!(said[0], said[1]);
    assert!(said[0].contains("run 3\n"), "{}", said[0]);
    drop(ext4);
    place.finish();
}
