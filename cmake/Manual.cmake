# Man pages and shell completion of the command, in ${PROJECT_BINARY_DIR}/manual. The program lockstep_manual, which is not
# installed, writes them from the option tables of the command.
file(GLOB LS_MANUAL_SOURCES CONFIGURE_DEPENDS src/cli/manual/*.c)
add_executable(lockstep_manual ${LS_MANUAL_SOURCES} $<TARGET_OBJECTS:lockstep_command_objects>)
target_link_libraries(lockstep_manual PRIVATE lockstep_static lockstep_cli_dependencies)

set(LS_MANUAL ${PROJECT_BINARY_DIR}/manual)
set(LS_MANUAL_COMPRESS true)
set(LS_MANUAL_SUFFIX .1)
if(LS_DEB)
  set(LS_MANUAL_SUFFIX .1.gz)
  set(LS_MANUAL_COMPRESS sh -c "gzip -9nk '${LS_MANUAL}'/*.1")
endif()
string(TIMESTAMP LS_MANUAL_DATE "%Y-%m-%d" UTC) # of SOURCE_DATE_EPOCH if it is set
add_custom_command(OUTPUT ${LS_MANUAL}/lockstep.1
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${LS_MANUAL}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${LS_MANUAL}
  COMMAND lockstep_manual ${LS_MANUAL} ${LS_MANUAL_DATE}
  COMMAND ${LS_MANUAL_COMPRESS} DEPENDS lockstep_manual VERBATIM)
add_custom_target(lockstep_pages ALL DEPENDS ${LS_MANUAL}/lockstep.1)
add_dependencies(lockstep_modules lockstep_pages) # together, they are what is installed besides the library

install(DIRECTORY ${LS_MANUAL}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT command FILES_MATCHING
        PATTERN *${LS_MANUAL_SUFFIX})
foreach(completion bash-completion/completions/lockstep zsh/site-functions/_lockstep
    fish/vendor_completions.d/lockstep.fish)
  cmake_path(GET completion PARENT_PATH folder)
  cmake_path(GET completion FILENAME file)
  install(FILES ${LS_MANUAL}/${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/${folder} COMPONENT command)
endforeach()
