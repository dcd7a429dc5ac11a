# Man pages and shell completion of the command, in ${PROJECT_BINARY_DIR}/manual. The program lockstep_manual, which is not
# installed, writes them from the option tables of the command.
file(GLOB LS_MANUAL_SOURCES CONFIGURE_DEPENDS src/cli/manual/*.c)
add_executable(lockstep_manual ${LS_MANUAL_SOURCES} $<TARGET_OBJECTS:lockstep_command_objects>)
target_link_libraries(lockstep_manual PRIVATE lockstep_static lockstep_cli_dependencies)

set(LS_MANUAL ${PROJECT_BINARY_DIR}/manual)
string(TIMESTAMP LS_MANUAL_DATE "%Y-%m-%d" UTC) # of SOURCE_DATE_EPOCH if it is set
add_custom_command(OUTPUT ${LS_MANUAL}/lockstep.1
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${LS_MANUAL}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${LS_MANUAL}
  COMMAND lockstep_manual ${LS_MANUAL} ${LS_MANUAL_DATE} DEPENDS lockstep_manual VERBATIM)
add_custom_target(lockstep_pages ALL DEPENDS ${LS_MANUAL}/lockstep.1)
add_dependencies(lockstep_modules lockstep_pages) # together, they are what is installed besides the library

install(DIRECTORY ${LS_MANUAL}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN *.1)
install(FILES ${LS_MANUAL}/lockstep DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${LS_MANUAL}/_lockstep DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${LS_MANUAL}/lockstep.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
