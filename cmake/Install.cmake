# `cmake --install` gives headers, the library, the command, pkg-config files, a CMake package, and the
# Fortran module. The components are the Debian packages (cmake/Debian.cmake).
include(CMakePackageConfigHelpers)

install(TARGETS lockstep EXPORT lockstepTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        COMPONENT library NAMELINK_COMPONENT development)
install(DIRECTORY include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(TARGETS lockstep_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT command)

# The .pc file finds the prefix from where it lies, so that an installed tree can be moved. Programs find the library
# where it was when they were linked, unless it is in a folder of the system.
set(LS_PC_RPATH "-Wl,-rpath,\${libdir} ")
if(LS_DEB)
  set(LS_PC_RPATH)
endif()
file(RELATIVE_PATH LS_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" LS_PREFIX_FROM_PC "${LS_PREFIX_FROM_PC}")
configure_file(cmake/lockstep.pc.in ${PROJECT_BINARY_DIR}/lockstep.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
          COMPONENT development)
if(TARGET lockstep_fortran)
  configure_file(cmake/lockstep-fortran.pc.in ${PROJECT_BINARY_DIR}/lockstep-fortran.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/lockstep-fortran.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
          COMPONENT development)
endif()

set(LS_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_package_config_file(cmake/lockstepConfig.cmake.in ${PROJECT_BINARY_DIR}/lockstepConfig.cmake
                              INSTALL_DESTINATION ${LS_PACKAGE_DIR})
install(FILES ${PROJECT_BINARY_DIR}/lockstepConfig.cmake ${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
        DESTINATION ${LS_PACKAGE_DIR} COMPONENT development)
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${LS_PACKAGE_DIR} COMPONENT development)
if(LS_DEB)
  include(cmake/Debian.cmake)
endif()
