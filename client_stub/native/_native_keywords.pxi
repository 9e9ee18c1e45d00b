# The words of the error for a keyword that send() does not take. A parameter for such keywords would cost each call the
# dict that holds them, so the error of a call that has failed is replaced.

cdef extern from *:
    """
    static vectorcallfunc ks_send;
    static int (*ks_refuse)(PyObject *);
    static PyObject *ks_send_or_refuse(PyObject *send, PyObject *const *args, size_t count, PyObject *names) {
        PyObject *made;
        if (names == NULL) return ks_send(send, args, count, NULL);  /* a jump: calls by position pay no frame */
        made = ks_send(send, args, count, names);
        if (made == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyObject *kind, *error, *trace;
            PyErr_Fetch(&kind, &error, &trace);
            if (ks_refuse(names) < 0) {
                Py_XDECREF(kind); Py_XDECREF(error); Py_XDECREF(trace);
            } else PyErr_Restore(kind, error, trace);
        }
        return made;
    }
    static void ks_watch(PyObject *send, int (*refuse)(PyObject *)) {
        vectorcallfunc found = PyVectorcall_Function(send);
        if (found == NULL) return;
        ks_send = found;
        ks_refuse = refuse;
        *(vectorcallfunc *) ((char *) send + Py_TYPE(send)->tp_vectorcall_offset) = ks_send_or_refuse;
    }
    """
    void ks_watch(object, int (*)(PyObject*) except -1)


cdef int refuse_unknown(PyObject* names) except -1:
    """Raise a TypeError if one of the keywords ``names``, a tuple, is no field of send()."""
    for name in <tuple> <object> names:
        if name not in SEND_FIELDS:
            raise TypeError(unknown_field("send()", name, SEND_FIELDS))
    return 0


ks_watch((<object> ProducerCore).__dict__["send"], refuse_unknown)
