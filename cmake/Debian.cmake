# Debian packages, with the preset `package`: liblockstep0.1, liblockstep-dev, lockstep, and one for each plug-in. `cpack` writes
# them. The component of each installed file is its package; cmake/Install.cmake and ls_add_module name the components.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each package has a summary of its own
set(CPACK_PACKAGE_HOMEPAGE_URL https://github.com/lockstep/lockstep)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
    WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "Lockstep developers <lockstep@users.noreply.github.com>" CACHE STRING
    "Maintainer of the Debian packages")
set(LS_DEB_VERSION ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})
set(LS_DEB_LIBRARY liblockstep${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

string(TIMESTAMP LS_DEB_DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${PROJECT_BINARY_DIR}/debian/changelog "lockstep (${LS_DEB_VERSION}) unstable; urgency=medium

  * New upstream release: see CHANGELOG.md of the source.

 -- ${CPACK_DEBIAN_PACKAGE_MAINTAINER}  ${LS_DEB_DATE}
")
file(READ LICENSE license)
string(REPLACE "\n\n" "\n.\n" license "${license}")
string(REGEX REPLACE "\n([^\n])" "\n \\1" license "\n${license}")
file(WRITE ${PROJECT_BINARY_DIR}/debian/copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Source: ${CPACK_PACKAGE_HOMEPAGE_URL}

Files: *
Copyright: the Lockstep developers
License: MIT${license}")
# Only the library is for other packages to link; cpack would look at the plug-ins, too.
file(WRITE ${PROJECT_BINARY_DIR}/debian/shlibs
     "liblockstep ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} ${LS_DEB_LIBRARY} (>= ${PROJECT_VERSION})\n")
file(WRITE ${PROJECT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
execute_process(COMMAND gzip -9nkf ${PROJECT_BINARY_DIR}/debian/changelog)

# ls_deb(COMPONENT NAME SECTION DEPENDS DESCRIPTION): the package of a component. Its dependencies on libraries are found
# by dpkg-shlibdeps.
function(ls_deb COMPONENT NAME SECTION DEPENDS DESCRIPTION)
  string(TOUPPER ${COMPONENT} key)
  set(CPACK_DEBIAN_${key}_PACKAGE_NAME ${NAME} PARENT_SCOPE)
  set(CPACK_DEBIAN_${key}_PACKAGE_SECTION ${SECTION} PARENT_SCOPE)
  set(CPACK_DEBIAN_${key}_PACKAGE_DEPENDS "${DEPENDS}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${key}_DESCRIPTION "${DESCRIPTION}" PARENT_SCOPE)
  set(CPACK_COMPONENTS_ALL ${CPACK_COMPONENTS_ALL} ${COMPONENT} PARENT_SCOPE)
  install(FILES ${PROJECT_BINARY_DIR}/debian/copyright DESTINATION share/doc/${NAME} COMPONENT ${COMPONENT})
  install(FILES ${PROJECT_BINARY_DIR}/debian/changelog.gz RENAME changelog.Debian.gz DESTINATION share/doc/${NAME}
          COMPONENT ${COMPONENT})
endfunction()

set(about "Lockstep trains one model on many processes, which finish with\nbit-identical parameters.")
set(same "${LS_DEB_LIBRARY} (= ${LS_DEB_VERSION})")
ls_deb(library ${LS_DEB_LIBRARY} libs "libopenblas0" "C library for distributed training
${about} This package contains the library.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS "lockstep-onednn (= ${LS_DEB_VERSION})")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/shlibs ${PROJECT_BINARY_DIR}/debian/triggers)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS "libpng16-16, libjpeg62-turbo")
ls_deb(development liblockstep-dev libdevel "${same}" "C library for distributed training (development files)
${about} This package contains the headers,
the files for CMake and pkg-config, and the Fortran module.")
ls_deb(command lockstep science "" "command of Lockstep: start and inspect distributed training
${about} This package contains the command
lockstep, which starts jobs, measures collectives, and inspects checkpoints
and the machine.")
set(CPACK_DEBIAN_COMMAND_PACKAGE_RECOMMENDS "${same}")

set(LS_DEB_onednn "convolutions and matrix products by oneDNN for Lockstep
${about} With this plug-in, oneDNN computes
convolutions and large matrix products.")
set(LS_DEB_mpi_openmpi "Open MPI backend for Lockstep
${about} With this plug-in, ranks that Open MPI starts
exchange their data through Open MPI.")
set(LS_DEB_mpi_mpich "MPICH backend for Lockstep
${about} With this plug-in, ranks that MPICH starts
exchange their data through MPICH.")
set(LS_DEB_gloo "Gloo backend for Lockstep
${about} With this plug-in, programs can ask for the
collectives of Gloo.")
set(LS_DEB_cuda "NVIDIA GPUs for Lockstep
${about} With this plug-in, tensors and training can be on
NVIDIA GPUs.")
set(LS_DEB_nccl "NCCL backend for Lockstep
${about} With this plug-in, ranks on NVIDIA GPUs
exchange their data through NCCL.")
set(LS_DEB_hdf5 "HDF5 files for Lockstep
${about} With this plug-in, programs train on data in HDF5
files, and the command lockstep exports checkpoints to HDF5.")
set(LS_DEB_netcdf "NetCDF files for Lockstep
${about} With this plug-in, programs train on data in
NetCDF files.")
foreach(module onednn mpi_openmpi mpi_mpich gloo cuda nccl hdf5 netcdf)
  if(TARGET lockstep_module_${module})
    string(REPLACE mpi_ "" name ${module})
    ls_deb(${module} lockstep-${name} libs "${same}" "${LS_DEB_${module}}")
  endif()
endforeach()
include(CPack)
