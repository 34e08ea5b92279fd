//! Package managers: npm and pip install local packages, without a network.

use crate::place::{Place, able};

#[test]
#[ignore = "deep: programs of others"]
fn npm_installs_packages() {
    if !able(&["npm", "node"]) {
        return;
    }
    let mut place = Place::mounted("1G", "");
    let script = r#"
        export HOME=$PWD npm_config_cache=$PWD/cache npm_config_offline=true npm_config_audit=false \
               npm_config_fund=false npm_config_update_notifier=false
        mkdir -p base/data tool app
        for n in $(seq 400); do echo "module.exports = $n" > base/data/$n.js; done
        echo '{"name":"base","version":"1.0.0","main":"data/42.js"}' > base/package.json
        echo '{"name":"tool","version":"2.0.0","bin":{"tool":"cli.js"},"dependencies":{"base":"^1.0.0"}}' > tool/package.json
        printf '#!/usr/bin/env node\nconsole.log(require("base") + 1)\n' > tool/cli.js
        (cd base; npm pack -s --pack-destination ..); (cd tool; npm pack -s --pack-destination ..)
        cd app; echo '{"name":"app","version":"1.0.0"}' > package.json
        npm install -s ../base-1.0.0.tgz ../tool-2.0.0.tgz
        test "$(node_modules/.bin/tool)" = 43; npm ls -s > before
        npm ci -s; test "$(npm exec -s tool)" = 43; npm ls -s | cmp - before
        test "$(ls node_modules/base/data | wc -l)" = 400
        npm uninstall -s tool; test ! -e node_modules/.bin/tool"#;
    place.sh(script);
    place.remount("");
    place.sh(r#"cd app; test "$(node -p 'require("base")')" = 42; rm -r node_modules"#);
    place.finish();
}

/// Makes a wheel: a package and a command.
pub const WHEEL: &str = r#"
import zipfile
info = "small-1.0.dist-info/"
files = {
    "small/__init__.py": "def main():\n    print(sum([40, 2]))\n",
    info + "METADATA": "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n",
    info + "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    info + "entry_points.txt": "[console_scripts]\nsmall = small:main\n",
}
files |= {f"small/part{n}.py": f"number = {n}\n" for n in range(200)}
files[info + "RECORD"] = "".join(f"{name},,\n" for name in [*files, info + "RECORD"])
with zipfile.ZipFile("small-1.0-py3-none-any.whl", "w") as wheel:
    for name, text in files.items():
        wheel.writestr(name, text)
"#;

#[test]
#[ignore = "deep: programs of others"]
fn pip_installs_a_wheel_into_an_environment() {
    if !able(&["python3"]) {
        return;
    }
    let mut place = Place::mounted("1G", "");
    std::fs::write(place.at("wheel.py"), WHEEL).unwrap();
    let script = "export HOME=$PWD PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1
        python3 wheel.py; python3 -m venv environment
        environment/bin/pip install -q ./small-1.0-py3-none-any.whl; environment/bin/pip check
        test $(environment/bin/small) = 42
        test $(find environment -name 'part*.pyc' | wc -l) = 200";
    place.sh(script);
    place.remount("");
    let again = "test $(environment/bin/small) = 42; environment/bin/pip uninstall -q -y small
        test ! -e environment/bin/small; test -z \"$(find environment -name 'part*')\"";
    place.sh(again);
    place.finish();
}
