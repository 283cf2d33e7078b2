# cmake --install: the library, its headers, a pkg-config file and a CMake package. The prefix is written nowhere, so the
# installed tree may be moved. The Python extension is not installed, and a wheel does not use this file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/memscale)

install(TARGETS memscale_shared memscale_static EXPORT memscaleTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES include/memscale/memscale.h include/memscale/memscale_errors.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/memscale)

set_target_properties(memscale_shared PROPERTIES EXPORT_NAME memscale)
install(EXPORT memscaleTargets NAMESPACE memscale:: DESTINATION ${package_dir})
configure_package_config_file(cmake/memscaleConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/memscaleConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/memscaleConfigVersion.cmake
  COMPATIBILITY SameMinorVersion) # before 1.0 a minor version may break
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/memscaleConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/memscaleConfigVersion.cmake
  DESTINATION ${package_dir})

# Relative paths from the folder of memscale.pc: libdir may have any depth, or be outside of the prefix.
set(pc_dir ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pc_prefix ${pc_dir} ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH pc_includedir ${pc_dir} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(cmake/memscale.pc.in ${CMAKE_CURRENT_BINARY_DIR}/memscale.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/memscale.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
