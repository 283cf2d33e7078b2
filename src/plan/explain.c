/* explain.c - a plan for people. */
#include "plan.h"
ms_status ms_plan_explain(const ms_plan *plan, char **out_text) { (void)plan; (void)out_text; return MS_OK; }
ms_status ms_plan_pareto(const ms_plan_request *request, ms_pareto_point *out, int64_t capacity, int64_t *out_n) {(void)request;(void)out;(void)capacity;(void)out_n; return MS_OK;}
