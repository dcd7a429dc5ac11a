# `cmake --install` gives headers, the library, the command, pkg-config files, a CMake package, and the
# Fortran module.
include(CMakePackageConfigHelpers)

install(TARGETS lockstep EXPORT lockstepTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS lockstep_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# The .pc file finds the prefix from where it lies, so that an installed tree can be moved.
file(RELATIVE_PATH LS_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" LS_PREFIX_FROM_PC "${LS_PREFIX_FROM_PC}")
configure_file(cmake/lockstep.pc.in ${PROJECT_BINARY_DIR}/lockstep.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(TARGET lockstep_fortran)
  configure_file(cmake/lockstep-fortran.pc.in ${PROJECT_BINARY_DIR}/lockstep-fortran.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/lockstep-fortran.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

set(LS_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_package_config_file(cmake/lockstepConfig.cmake.in ${PROJECT_BINARY_DIR}/lockstepConfig.cmake
                              INSTALL_DESTINATION ${LS_PACKAGE_DIR})
install(FILES ${PROJECT_BINARY_DIR}/lockstepConfig.cmake ${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
        DESTINATION ${LS_PACKAGE_DIR})
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${LS_PACKAGE_DIR})
