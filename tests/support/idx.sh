# Small MNIST-like data for scripts in tests/shell.

# bytes NUMBER...: those bytes.
bytes() {
    printf "$(printf '\\%03o' "$@")"
}

# images COUNT ROWS COLUMNS: an IDX file of random pictures on standard output; fewer than 65536, each side fewer than 256.
images() {
    bytes 0 0 8 3 0 0 $(($1 / 256)) $(($1 % 256)) 0 0 0 "$2" 0 0 0 "$3"
    head -c $(($1 * $2 * $3)) /dev/urandom
}

# labels COUNT VALUE: an IDX file of labels that all have this value.
labels() {
    bytes 0 0 8 1 0 0 $(($1 / 256)) $(($1 % 256))
    head -c "$1" /dev/zero | tr '\0' "\\$(printf '%03o' "$2")"
}

# mnist_folder NAME COUNT: a folder with COUNT samples for training and 12 for testing, gzipped.
mnist_folder() {
    mkdir "$1"
    images "$2" 28 28 >"$1/train-images-idx3-ubyte"
    labels "$2" 7 >"$1/train-labels-idx1-ubyte"
    images 12 28 28 | gzip >"$1/t10k-images-idx3-ubyte.gz"
    labels 12 7 | gzip >"$1/t10k-labels-idx1-ubyte.gz"
}
