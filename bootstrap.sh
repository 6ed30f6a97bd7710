# Shared by ./millrace and ./check: packages, configuration, build. Sourced, not run.
packages=(g++ cmake ninja-build libdnnl-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libfmt-dev libxxhash-dev libpcre2-dev zlib1g-dev
          libzstd-dev libsentencepiece-dev)
test_packages=(libgtest-dev libbenchmark-dev)

# Installs the Debian packages among "$@" that are missing, with one line about what and why.
install_packages() {
  local missing=() name
  if ! command -v apt-get >/dev/null; then
    echo "millrace: no apt-get here: install yourself what these Debian packages have: $*" >&2
    return 0
  fi
  for name in "$@"; do
    dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  echo "millrace: installing what the build needs: ${missing[*]}" >&2
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "millrace: not root and no sudo; please run: apt-get install ${missing[*]}" >&2
      return 1
    }
    sudo=(sudo)
  fi
  export DEBIAN_FRONTEND=noninteractive
  "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1 ||
    { "${sudo[@]}" apt-get update -qq >&2 && "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2; }
}

# build_in FOLDER TARGETS CMAKE-ARGUMENTS...: configures once, then lets ninja decide what to do.
build_in() {
  local folder=$1 targets=$2
  shift 2
  # Configured anew when a target is not known yet: its library may have been installed since.
  if [ ! -f "$folder/build.ninja" ] || ! ninja -C "$folder" -t query $targets >/dev/null 2>&1; then
    echo "millrace: configuring and building in ${folder##*/}/ (a few minutes, once)" >&2
    cmake -S "$here" -B "$folder" -G Ninja "$@" >"$folder.log" 2>&1 || {
      cat "$folder.log" >&2
      return 1
    }
    rm -f "$folder.log"
  fi
  # Quiet when there is nothing to do; otherwise ninja's own progress line, and all of it if it fails.
  if ! ninja -C "$folder" -n $targets 2>/dev/null | grep -q 'no work to do'; then
    if [ -t 2 ]; then ninja -C "$folder" $targets >&2; else
      local log
      log=$(ninja -C "$folder" $targets 2>&1) || {
        printf '%s\n' "$log" >&2
        return 1
      }
    fi
  fi
}

build_program() {
  # The packages are looked at only while there is no program, or one older than their list: dpkg is
  # slow to ask.
  [ "$here/build/millrace" -nt "$here/bootstrap.sh" ] || install_packages "${packages[@]}"
  build_in "$here/build" millrace -DCMAKE_BUILD_TYPE=Release
}
