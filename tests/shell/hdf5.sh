# Files of ls_hdf5_save, as h5py reads them; and the messages if plug-ins hdf5 and netcdf are not installed, or HDF5 is not.
. "$LS_SOURCE/tests/support/checks.sh"
program=$LS_BUILD/tests/hdf5_program
if [ ! -e "$LS_BUILD/lib/lockstep-hdf5.so" ]; then
    echo "SKIPPED: plug-in hdf5 is not built (scripts/install-deps --hdf5)"
    exit 77
fi

# ---- every dtype ----
check "all dtypes are written" "$program" all.safetensors all.h5
if /usr/bin/python3 -c 'import h5py' 2>/dev/null; then
    check "h5py reads all dtypes" /usr/bin/python3 "$LS_SOURCE/tests/shell/h5py_reads.py" all.h5 all.safetensors
else
    echo "SKIPPED reading the file: h5py is not installed (Debian: python3-h5py)"
fi
check "nothing else is left" is "$(ls -A | grep -c all)" 2

# ---- without the plug-in ----
mkdir -p alone/tests
cp "$program" alone/tests/
(cd alone && tests/hdf5_program x.safetensors x.h5 2>err)
check "no plug-in: a failure" is $? 1
check "no plug-in: the package is named" says alone/err \
    '^ls_hdf5_save: no lockstep-hdf5.so was found in .*; install the package lockstep-hdf5, or run `scripts/install-deps --hdf5`'
check "no plug-in: no file" is "$(ls alone/x.h5 2>/dev/null)" ""

# ---- without HDF5 ----
mkdir needy
echo 'void missing(void) {}' | cc -shared -fPIC -x c - -o libgone.so
echo 'void missing(void); void call(void) { missing(); }' | cc -shared -fPIC -x c - -x none "$PWD/libgone.so" \
    -o needy/lockstep-hdf5.so
rm libgone.so
LOCKSTEP_MODULE_PATH=$PWD/needy "$program" x.safetensors x.h5 2>err
check "no HDF5: a failure" is $? 1
check "no HDF5: the library is named" says err 'lockstep-hdf5.so needs .*libgone.so, which is not installed on this machine'
finish
